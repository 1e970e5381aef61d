// The library of a plan over emulated devices, for callers of its functions.
#include "treadle_checkpoint.cu"

extern "C" void *emulated_stream() {
    cudaStream_t stream;
    emulated::patient = true;
    cudaStreamCreateWithFlags(&stream, 0);
    return stream;
}
