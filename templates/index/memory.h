// Memory of one index: blocks of a size class come from chunks and are reused; large blocks come and go on their own.
namespace inside {

class Memory {
public:
    Memory() = default;
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory() { release(); }

    // Aligned to 64 bytes from that size on. Raises std::bad_alloc.
    void* take(size_t bytes) {
        if (bytes > LARGE) return take_large(bytes);
        const unsigned kind = class_of(bytes);
        const size_t size = size_of(kind);
        Free* block = free_[kind];
        if (block) {
            pop(kind);
        } else {
            block = static_cast<Free*>(carve(size, kind));
        }
        used_ += size;
        return block;
    }

    void give(void* block, size_t bytes) noexcept {
        if (bytes > LARGE) return give_large(block);
        const unsigned kind = class_of(bytes);
        used_ -= size_of(kind);
        push(block, kind);
    }

    // Everything that was taken, at once.
    void release() noexcept {
        for (Chunk** list : {&chunks_, &large_})
            while (*list) {
                Chunk* next = (*list)->next;
                discard(*list);
                *list = next;
            }
        for (Free*& list : free_) list = nullptr;
        filled_ = 0;
        at_ = end_ = nullptr;
        held_ = used_ = 0;
    }

    size_t held() const { return held_; }  // bytes from operator new
    size_t used() const { return used_; }  // bytes of blocks in use, without the headers of chunks

    // What a block of this many bytes adds to used().
    static size_t rounded(size_t bytes) {
        return bytes > LARGE ? large_size(bytes) : size_of(class_of(bytes));
    }

private:
    struct Free {
        Free* next;
    };
    struct alignas(64) Chunk {
        Chunk *next, *previous;
        size_t bytes;
    };
    static constexpr size_t LARGE = 1 << 15, SMALLEST = 32, FIRST_CHUNK = 1 << 12, LAST_CHUNK = 1 << 21;
    static constexpr unsigned CLASSES = 1 + 8 + 4 * 6;

    // 32, then 64 to 512 in steps of 64, then four steps for each doubling.
    static unsigned class_of(size_t bytes) {
        if (bytes <= SMALLEST) return 0;
        if (bytes <= 512) return unsigned((bytes + 63) / 64);
        const unsigned top = 63 - unsigned(__builtin_clzll(bytes - 1));
        return 9 + (top - 9) * 4 + unsigned(((bytes - 1) >> (top - 2)) & 3);
    }

    static size_t size_of(unsigned kind) {
        if (kind == 0) return SMALLEST;
        if (kind <= 8) return size_t(kind) * 64;
        return size_t(5 + (kind - 9) % 4) << (7 + (kind - 9) / 4);
    }

    static size_t large_size(size_t bytes) { return (bytes + 63) / 64 * 64 + sizeof(Chunk); }

    void push(void* block, unsigned kind) noexcept {
        Free* free = static_cast<Free*>(block);
        free->next = free_[kind];
        free_[kind] = free;
        filled_ |= uint64_t(1) << kind;
    }

    void* pop(unsigned kind) {
        Free* block = free_[kind];
        free_[kind] = block->next;
        if (!block->next) filled_ &= ~(uint64_t(1) << kind);
        return block;
    }

    void* carve(size_t size, unsigned kind) {
        if (size >= 64 && (reinterpret_cast<uintptr_t>(at_) & 63) && at_ < end_) {
            push(at_, 0);
            at_ += SMALLEST;
        }
        if (size_t(end_ - at_) < size) {
            const uint64_t larger = filled_ >> kind >> 1;
            if (larger) {  // an unused block of a larger class
                const unsigned from = kind + 1 + unsigned(__builtin_ctzll(larger));
                char* block = static_cast<char*>(pop(from));
                scatter(block + size, size_of(from) - size);
                return block;
            }
            char* rest = at_;
            const size_t left = size_t(end_ - at_);
            more(size);
            scatter(rest, left);
        }
        char* block = at_;
        at_ += size;
        return block;
    }

    // Bytes, a multiple of 32, as unused blocks.
    void scatter(char* from, size_t bytes) noexcept {
        while (bytes) {
            const bool odd = reinterpret_cast<uintptr_t>(from) & 63;
            unsigned kind = odd || bytes < 64 ? 0 : class_of(bytes < LARGE ? bytes : LARGE);
            if (size_of(kind) > bytes) --kind;
            push(from, kind);
            from += size_of(kind);
            bytes -= size_of(kind);
        }
    }

    // A chunk of a quarter of what is held, up to a huge page, so that little is unused.
    void more(size_t size) {
        size_t bytes = held_ / 4 / FIRST_CHUNK * FIRST_CHUNK;
        bytes = bytes < FIRST_CHUNK ? FIRST_CHUNK : bytes > LAST_CHUNK ? LAST_CHUNK : bytes;
        if (bytes < size + sizeof(Chunk)) bytes = (size + sizeof(Chunk) + FIRST_CHUNK - 1) / FIRST_CHUNK * FIRST_CHUNK;
        Chunk* chunk = fresh(bytes, chunks_);
        at_ = reinterpret_cast<char*>(chunk + 1);
        end_ = reinterpret_cast<char*>(chunk) + bytes;
    }

    Chunk* fresh(size_t bytes, Chunk*& list) {
        Chunk* chunk = static_cast<Chunk*>(::operator new(bytes, alignment(bytes)));
#if defined(__linux__)
        if (bytes >= LAST_CHUNK) madvise(chunk, bytes / LAST_CHUNK * LAST_CHUNK, MADV_HUGEPAGE);  // fewer TLB misses
#endif
        *chunk = {list, nullptr, bytes};
        if (list) list->previous = chunk;
        list = chunk;
        held_ += bytes;
        return chunk;
    }

    static std::align_val_t alignment(size_t bytes) { return std::align_val_t(bytes < LAST_CHUNK ? 64 : LAST_CHUNK); }
    static void discard(Chunk* chunk) noexcept { ::operator delete(chunk, alignment(chunk->bytes)); }

    void* take_large(size_t bytes) {
        Chunk* chunk = fresh(large_size(bytes), large_);
        used_ += chunk->bytes;
        return chunk + 1;
    }

    void give_large(void* block) noexcept {
        Chunk* chunk = static_cast<Chunk*>(block) - 1;
        (chunk->previous ? chunk->previous->next : large_) = chunk->next;
        if (chunk->next) chunk->next->previous = chunk->previous;
        held_ -= chunk->bytes;
        used_ -= chunk->bytes;
        discard(chunk);
    }

    Chunk *chunks_ = nullptr, *large_ = nullptr;
    char *at_ = nullptr, *end_ = nullptr;
    Free* free_[CLASSES] = {};
    uint64_t filled_ = 0;  // classes that have unused blocks
    size_t held_ = 0, used_ = 0;
};

}  // namespace inside
