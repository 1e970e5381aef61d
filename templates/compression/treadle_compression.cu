// Encoders and decoders for GPUs, with the interface of those for CPUs. A call queues its kernels on the stream of the
// caller, allocates nothing and waits for nothing.
#include <algorithm>

#include "treadle_host.h"
#include "treadle_selection_kernels.h"

namespace treadle {

constexpr int BLOCK = platform::STREAMS ? 256 : 16;
constexpr int64_t MAX_BLOCKS = platform::STREAMS ? 1024 : 3;
inline thread_local uint32_t deadlock = 0;

inline int64_t chunks_of(const Coding &coding) { return (coding.elements + CHUNK - 1) / CHUNK; }

inline Task task_of(const Coding &coding) {
    Task task{coding};
    task.abort.word = &deadlock;
    task.chunks = chunks_of(coding);
    task.sample_rank = coding.algorithm == DGC ? sample_rank(coding.elements, coding.kept) : 0;
    char *scratch = static_cast<char *>(coding.scratch);
    task.greater = reinterpret_cast<int64_t *>(scratch);
    task.equal = task.greater + task.chunks;
    task.first = reinterpret_cast<float *>(task.equal + task.chunks);
    task.second = task.first + task.chunks;
    task.selection = reinterpret_cast<Selection *>(task.second + task.chunks);
    return task;
}

// Launches a kernel whose blocks take `most` pieces of work between them.
inline void launch(CompressionKernel kernel, Task task, int64_t most, bool limited = true) {
    task.blocks = std::max<int64_t>(1, limited ? std::min(most, MAX_BLOCKS) : most);
    platform::start(kernel, task.device, int(task.blocks), BLOCK, task, task.stream, false);
    if (platform::STREAMS) return;
    platform::synchronise(task.device, task.order);
    if (deadlock) throw std::runtime_error("kernels wait for one another");
}

inline int64_t blocks_for(int64_t count) { return (count + BLOCK - 1) / BLOCK; }

inline void find_rank(Task task, bool sampling) {
    task.sampling = sampling;
    for (int shift : {20, 9, 0}) {
        task.shift = shift;
        launch(histogram, task, blocks_for(sampling ? SAMPLES : task.elements));
        launch(pick, task, 1);
    }
}

inline void encode_sparse(Task task) {
    task.sampling = task.sample_rank > 0;
    launch(begin_selection, task, 1);
    if (task.residual) launch(accumulate, task, blocks_for(task.elements));
    if (task.algorithm == RANDOMK) {
        launch(gather_random, task, blocks_for(task.kept));
    } else {
        if (task.sample_rank) find_rank(task, true);
        find_rank(task, false);
        launch(clear_words, task, blocks_for(task.words));
        launch(count_chunks, task, task.chunks);
        launch(count_before, task, 1);
        launch(place_chunks, task, task.chunks);
    }
    if (task.residual) launch(forget_infinite, task, blocks_for(task.elements));
}

inline void encode(const Task &task) {
    switch (task.algorithm) {
        case RANDOMK:
        case TOPK:
        case DGC: return encode_sparse(task);
        case EFSIGNSGD:
        case ONEBIT:
            launch(sum_signs, task, task.chunks);
            launch(mean_signs, task, 1);
            if (task.residual) launch(subtract_signs, task, blocks_for(task.elements));
            return;
        case QSGD:
        case INT8: return launch(encode_bytes, task, (task.elements + BUCKET - 1) / BUCKET);
        case FP16:
        case BF16: return launch(encode_halves, task, blocks_for((task.elements + 1) / 2));
    }
    throw std::runtime_error("no encoder of this number");
}

inline void decode(Task task) {
    if (task.algorithm > BF16) throw std::runtime_error("no decoder of this number");
    if (task.algorithm == RANDOMK) return launch(decode_random, task, blocks_for(task.kept));
    if (task.algorithm > DGC) return launch(decode_dense, task, blocks_for(task.elements));
    const Indices layout(task.elements, task.kept);
    for (task.piece = 0; task.piece < task.pieces; ++task.piece)
        launch(decode_sparse, task, blocks_for(layout.end - layout.highs), false);
}

}  // namespace treadle

TREADLE_API const char *treadle_message() { return treadle::message.c_str(); }

// Bytes of scratch memory that a call needs, aligned to 8.
TREADLE_API int64_t treadle_scratch_bytes(const treadle::Coding *coding) {
    return treadle::chunks_of(*coding) * 24 + int64_t(sizeof(treadle::Selection));
}

TREADLE_API int treadle_encode(const treadle::Coding *coding) {
    return treadle::guarded([&] { treadle::encode(treadle::task_of(*coding)); });
}

TREADLE_API int treadle_decode(const treadle::Coding *coding) {
    return treadle::guarded([&] { treadle::decode(treadle::task_of(*coding)); });
}
