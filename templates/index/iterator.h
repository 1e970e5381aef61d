// Items in ascending order. Any insert or erase ends the life of iterators.
class Index::Iterator {
public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = std::pair<uint64_t, uint64_t>;
    using difference_type = std::ptrdiff_t;
    using pointer = const value_type*;
    using reference = value_type;

    Iterator() = default;
    value_type operator*() const { return {keys_[at_], payloads_[at_]}; }
    uint64_t key() const { return keys_[at_]; }
    uint64_t payload() const { return payloads_[at_]; }

    Iterator& operator++() {
        if (++at_ == filled_) {
            const uint64_t last = keys_[at_ - 1];
            if (last == UINT64_MAX || filled_ < SOME)
                filled_ = at_ = 0;
            else
                read(last + 1);
        }
        return *this;
    }
    Iterator operator++(int) {
        Iterator before = *this;
        ++*this;
        return before;
    }

    // Of one index.
    bool operator==(const Iterator& other) const {
        const bool ended = at_ == filled_, theirs = other.at_ == other.filled_;
        return ended || theirs ? ended == theirs : key() == other.key();
    }
    bool operator!=(const Iterator& other) const { return !(*this == other); }

private:
    friend class Index;
    static constexpr size_t SOME = 128;

    Iterator(const Index& index, uint64_t from) : index_(&index) { read(from); }

    void read(uint64_t from) {
        at_ = 0;
        filled_ = index_->scan(from, SOME, keys_, payloads_);
    }

    const Index* index_ = nullptr;
    size_t at_ = 0, filled_ = 0;
    uint64_t keys_[SOME], payloads_[SOME];
};

inline Index::Iterator Index::begin() const { return Iterator(*this, 0); }
inline Index::Iterator Index::end() const { return Iterator(); }
inline Index::Iterator Index::lower_bound(uint64_t key) const { return Iterator(*this, key); }
