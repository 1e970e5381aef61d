// The index: operations, and the changes of its tree that inserts ask for.
class Index {
public:
    // Raises std::invalid_argument or std::bad_alloc.
    explicit Index(const Settings& settings = default_settings()) : Index(settings, {0, UINT64_MAX}) {}

    // Keys that ascend, into an empty index; false where they do not. Raises std::bad_alloc and stays empty.
    bool bulk_load(const uint64_t* keys, const uint64_t* payloads, size_t n) {
        for (size_t i = 1; i < n; ++i)
            if (keys[i - 1] >= keys[i]) return false;
        if (size_) return false;
        const inside::Child made = inside::Builder(context_, n).build(range_, keys, payloads, n);
        if (logs())
            for (size_t i = 0; i < n; ++i) inside::add(*inside::descend(made, keys[i]), keys[i], payloads[i]);
        inside::drop(context_, root_);
        root_ = made;
        size_ = n;
        return true;
    }

    bool lookup(uint64_t key, uint64_t* payload) const {
        const uint64_t* found = inside::find(context_, *inside::descend(root_, key), key);
        if (!found) return false;
        *payload = *found;
        return true;
    }

    // False where the key is there already, whose payload stays. Raises std::bad_alloc and inserts nothing.
    bool insert(uint64_t key, uint64_t payload) {
        for (;;) {
            inside::DataNode& leaf = *inside::descend(root_, key);
            switch (inside::insert(context_, leaf, key, payload)) {
                case inside::Outcome::inserted: ++size_; return true;
                case inside::Outcome::present: return false;
                case inside::Outcome::full: relieve(leaf, key); break;
                case inside::Outcome::due:
                    ++size_;
                    try {
                        relieve(leaf, key);
                    } catch (const std::bad_alloc&) {  // slower, but whole
                    }
                    return true;
            }
        }
    }

    bool erase(uint64_t key) {
        if (!inside::erase(context_, *inside::descend(root_, key), key)) return false;
        if (--size_ == 0) forget();
        return true;
    }

    // Up to `count` keys from `from` on, in order. Raises std::bad_alloc.
    size_t scan(uint64_t from, size_t count, uint64_t* keys, uint64_t* payloads) const {
        std::vector<inside::Item> aside;
        size_t written = 0;
        while (written < count) {
            inside::Range range = range_;
            const inside::DataNode& leaf = *inside::leaf_of(inside::descend_in(root_, from, range));
            written += inside::scan_leaf(context_, leaf, from, count - written, keys + written, payloads + written, aside);
            if (range.last >= range_.last) break;
            from = range.last + 1;
        }
        return written;
    }

    class Iterator;
    Iterator begin() const;
    Iterator end() const;
    Iterator lower_bound(uint64_t key) const;  // the first key that is not smaller

    size_t size() const { return size_; }
    size_t bytes() const { return sizeof(*this) + context_.memory.held(); }  // all memory, with what is unused
    Counts counts() const;
    const char* broken() const;  // the first invariant that does not hold, in words, or null
    const Settings& settings() const { return context_.settings; }

protected:
    // Of keys first .. last only.
    Index(const Settings& settings, inside::Range range) : context_(checked(settings)), range_(range) {
        root_ = inside::Builder(context_, 0).build(range_, nullptr, nullptr, 0);
    }

    inside::Context context_;
    inside::Range range_;
    inside::Child root_ = 0;
    uint64_t size_ = 0;

private:
    bool logs() const { return context_.settings.leaves == Leaves::fragmented_log; }

    static const Settings& checked(const Settings& of) {
        const bool log = of.leaves == Leaves::fragmented_log && of.fragment_keys >= 4 && of.fragment_keys <= 1 << 16 &&
                         of.new_fragments >= 1 && of.new_fragments <= of.most_fragments && of.most_fragments <= 1 << 16;
        const bool gapped = of.leaves == Leaves::gapped_array && of.most_search > 0 && of.most_shifts > 0;
        if (!(log || gapped) || !(of.insert_share >= 0 && of.insert_share <= 1))
            throw std::invalid_argument("treadle: settings of an index that are out of range");
        return of;
    }

    // A new tree, so that all memory of the old one returns; without memory for it the old one stays.
    void forget() noexcept {
        if (inside::is_leaf(root_)) return;
        try {
            const inside::Child made = inside::Builder(context_, 0).build(range_, nullptr, nullptr, 0);
            inside::drop(context_, root_);
            root_ = made;
        } catch (const std::bad_alloc&) {
        }
    }

    void relieve(inside::DataNode& leaf, uint64_t key) {
        if (logs()) {
            if (const unsigned times = inside::doublings_for(context_, leaf, key))
                return inside::multiply(context_, leaf, times);
        } else if (inside::expand(context_, leaf)) {
            return;
        }
        inside::Splitter(context_, range_, root_, size_).split(leaf, key);
    }
};
