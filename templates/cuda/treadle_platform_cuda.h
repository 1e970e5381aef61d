// What the driver needs of a machine, on CUDA.
#pragma once
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "treadle_device.h"

namespace treadle::platform {

using Handle = cudaIpcMemHandle_t;

constexpr int THREADS[] = {MAX_THREADS, 256, 128, 64, 32};
constexpr bool STREAMS = true;  // launches queue up behind one another on streams

inline void good(cudaError_t status, const char *what) {
    if (status == cudaSuccess) return;
    cudaGetLastError();
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

// Makes a device current and puts the caller's back at the end.
class On {
  public:
    explicit On(int device) {
        good(cudaGetDevice(&before_), "cudaGetDevice");
        good(cudaSetDevice(device), "cudaSetDevice");
    }
    ~On() { cudaSetDevice(before_); }
    On(const On &) = delete;

  private:
    int before_ = 0;
};

inline int device_count() {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

inline void *allocate(int device, size_t bytes) {
    On on(device);
    void *memory = nullptr;
    good(cudaMalloc(&memory, bytes), "cudaMalloc");
    good(cudaMemset(memory, 0, bytes), "cudaMemset");
    good(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    return memory;
}
inline void release(int device, void *memory) {
    On on(device);
    cudaFree(memory);
}
inline void upload(int device, void *to, const void *from, size_t bytes) {
    On on(device);
    good(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
}
inline void download(int device, void *to, const void *from, size_t bytes) {
    On on(device);
    good(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
}

// Lets `device` reach the memory of `peer`, and checks what the flags of other GPUs rely on.
inline void connect(int device, int peer) {
    if (device == peer) return;
    On on(device);
    int reachable = 0;
    good(cudaDeviceCanAccessPeer(&reachable, device, peer), "cudaDeviceCanAccessPeer");
    if (!reachable)
        throw std::runtime_error("GPU " + std::to_string(device) + " cannot reach the memory of GPU " +
                                 std::to_string(peer) + "; peer access needs NVLink or a common PCIe root");
    const cudaError_t status = cudaDeviceEnablePeerAccess(peer, 0);
    if (status == cudaErrorPeerAccessAlreadyEnabled)
        cudaGetLastError();
    else
        good(status, "cudaDeviceEnablePeerAccess");
}

inline Handle share(int device, void *memory) {
    On on(device);
    Handle handle;
    good(cudaIpcGetMemHandle(&handle, memory), "cudaIpcGetMemHandle");
    return handle;
}
inline void *attach(int device, Handle handle) {
    On on(device);
    void *memory = nullptr;
    good(cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle");
    return memory;
}
inline void detach(int device, void *memory) {
    On on(device);
    cudaIpcCloseMemHandle(memory);
}

template <class AnyKernel>
int resident_blocks(AnyKernel kernel, int device, int threads) {
    On on(device);
    int blocks = 0, processors = 0;
    good(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, 0), "occupancy");
    good(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
    return blocks * processors;
}

// `together`: its blocks wait for one another, so all of them must be resident at once.
template <class AnyKernel, class Parameters>
void start(AnyKernel kernel, int device, int blocks, int threads, const Parameters &launch, void *stream, bool together = true) {
    if (threads % WARP || threads > MAX_THREADS)
        throw std::runtime_error("expected a multiple of " + std::to_string(WARP) + " threads, at most " + std::to_string(MAX_THREADS));
    On on(device);
    void *parameters[] = {const_cast<Parameters *>(&launch)};
    const auto function = reinterpret_cast<const void *>(kernel);
    const auto on_stream = static_cast<cudaStream_t>(stream);
    if (together)
        good(cudaLaunchCooperativeKernel(function, dim3(blocks), dim3(threads), parameters, 0, on_stream), "cudaLaunchCooperativeKernel");
    else
        good(cudaLaunchKernel(function, dim3(blocks), dim3(threads), parameters, 0, on_stream), "cudaLaunchKernel");
}

// Another stream of a device, and the wait of a stream for all that another one has been given.
inline void *stream_of(int device) {
    On on(device);
    cudaStream_t stream;
    good(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    return stream;
}
inline void release_stream(int device, void *stream) {
    On on(device);
    cudaStreamDestroy(static_cast<cudaStream_t>(stream));
}
inline void follow(int device, void *stream, void *other) {
    On on(device);
    cudaEvent_t event;
    good(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    good(cudaEventRecord(event, static_cast<cudaStream_t>(other)), "cudaEventRecord");
    good(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), event, 0), "cudaStreamWaitEvent");
    good(cudaEventDestroy(event), "cudaEventDestroy");
}

inline void synchronise(int device, uint64_t) {
    On on(device);
    good(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

}  // namespace treadle::platform
