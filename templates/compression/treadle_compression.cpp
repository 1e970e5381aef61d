// Encoders and decoders for CPUs. A call works in the memory of the caller, and holds none when it ends.
#include <stdexcept>
#include <string>

#include "treadle_dense_host.h"
#include "treadle_sparse_host.h"

#define TREADLE_API extern "C" __attribute__((visibility("default")))

namespace treadle {

inline thread_local std::string message;

template <class Work>
int guarded(const Work &work) {
    try {
        work();
        return 0;
    } catch (const std::exception &error) {
        message = error.what();
        return 1;
    }
}

inline void encode(const Coding &coding) {
    switch (coding.algorithm) {
        case RANDOMK: return encode_random(coding);
        case TOPK:
        case DGC: return encode_sparse(coding);
        case EFSIGNSGD:
        case ONEBIT: return encode_signs(coding);
        case QSGD: return encode_bytes<true>(coding);
        case INT8: return encode_bytes<false>(coding);
        case FP16: return encode_halves<false>(coding);
        case BF16: return encode_halves<true>(coding);
    }
    throw std::runtime_error("no encoder of this number");
}

inline void decode(const Coding &coding) {
    switch (coding.algorithm) {
        case RANDOMK: return decode_random(coding);
        case TOPK:
        case DGC: return decode_sparse(coding);
        case EFSIGNSGD:
        case ONEBIT: return decode_dense(coding, add_signs);
        case QSGD:
        case INT8: return decode_dense(coding, add_bytes);
        case FP16: return decode_dense(coding, add_halves<false>);
        case BF16: return decode_dense(coding, add_halves<true>);
    }
    throw std::runtime_error("no decoder of this number");
}

}  // namespace treadle

TREADLE_API const char *treadle_message() { return treadle::message.c_str(); }

TREADLE_API int treadle_encode(const treadle::Coding *coding) {
    return treadle::guarded([&] { treadle::encode(*coding); });
}

TREADLE_API int treadle_decode(const treadle::Coding *coding) {
    return treadle::guarded([&] { treadle::decode(*coding); });
}
