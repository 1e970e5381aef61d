// Where a key stands among unsorted ones.
namespace inside {

// Position of the key among `n`, or n. Keys are read in fours: a block of memory must not end inside one.
inline uint32_t find_scalar(const uint64_t* keys, uint32_t n, uint64_t key) {
    for (uint32_t i = 0; i < n; ++i)
        if (keys[i] == key) return i;
    return n;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) inline uint32_t find_avx2(const uint64_t* keys, uint32_t n, uint64_t key) {
    const __m256i wanted = _mm256_set1_epi64x(int64_t(key));
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m256i* at = reinterpret_cast<const __m256i*>(keys + i);
        const __m256i a = _mm256_cmpeq_epi64(_mm256_loadu_si256(at), wanted);
        const __m256i b = _mm256_cmpeq_epi64(_mm256_loadu_si256(at + 1), wanted);
        const __m256i c = _mm256_cmpeq_epi64(_mm256_loadu_si256(at + 2), wanted);
        const __m256i d = _mm256_cmpeq_epi64(_mm256_loadu_si256(at + 3), wanted);
        const __m256i any = _mm256_or_si256(_mm256_or_si256(a, b), _mm256_or_si256(c, d));
        if (!_mm256_testz_si256(any, any)) {
            const uint32_t bits = uint32_t(_mm256_movemask_pd(_mm256_castsi256_pd(a))) |
                                  uint32_t(_mm256_movemask_pd(_mm256_castsi256_pd(b))) << 4 |
                                  uint32_t(_mm256_movemask_pd(_mm256_castsi256_pd(c))) << 8 |
                                  uint32_t(_mm256_movemask_pd(_mm256_castsi256_pd(d))) << 12;
            return i + uint32_t(__builtin_ctz(bits));
        }
    }
    for (; i < n; i += 4) {
        const __m256i four = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(keys + i));
        const int bits = _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(four, wanted)));
        if (bits) {
            const uint32_t found = i + uint32_t(__builtin_ctz(unsigned(bits)));
            return found < n ? found : n;  // what lies behind the last key is not one
        }
    }
    return n;
}

inline bool has_avx2() { return __builtin_cpu_supports("avx2"); }
#else
inline uint32_t find_avx2(const uint64_t* keys, uint32_t n, uint64_t key) { return find_scalar(keys, n, key); }
inline bool has_avx2() { return false; }
#endif

}  // namespace inside
