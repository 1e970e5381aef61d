// A stand-in for the CUDA runtime: four devices of four multiprocessors, each of which holds 64 threads of fibers. It
// keeps count of what belongs to which device and refuses what a real runtime would refuse. Its memory can be opened by
// other processes. With FAKE_AT_ONCE a launch runs at once and waits for what other processes do.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>

#include "treadle_device.h"

enum cudaError_t { cudaSuccess, cudaErrorInvalidDevice, cudaErrorInvalidValue, cudaErrorPeerAccessAlreadyEnabled,
                   cudaErrorCooperativeLaunchTooLarge, cudaErrorMemoryAllocation };
enum cudaDeviceP2PAttr { cudaDevP2PAttrNativeAtomicSupported };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount };
struct cudaIpcMemHandle_t {
    char reserved[64];
};
constexpr unsigned cudaIpcMemLazyEnablePeerAccess = 1, cudaHostRegisterPortable = 1, cudaHostRegisterMapped = 2;
using cudaStream_t = void *;
struct dim3 {
    unsigned x;
    dim3(unsigned x) : x(x) {}
};

namespace fake {
constexpr int DEVICES = 4, PROCESSORS = 4, THREADS = 64;
struct Memory {
    int device, file;
    size_t bytes;
};
struct Handle {
    int process, file;
    size_t bytes;
    void *memory;
};
struct State {
    int device = 0;
    std::map<void *, Memory> owner;
    std::map<void *, size_t> opened;
    std::set<std::pair<int, int>> peers;
    std::set<void *> registered;
    std::set<uint32_t *> abort_words;
    treadle::fibers::World world;
};
inline thread_local State state;
inline void *page_of(void *memory) { return reinterpret_cast<void *>(reinterpret_cast<uintptr_t>(memory) / 4096 * 4096); }
// NVLink joins each FAKE_NVLINKED neighbouring devices, PCIe the others.
#ifndef FAKE_NVLINKED
#define FAKE_NVLINKED 4
#endif
inline bool nvlinked(int device, int peer) { return device / FAKE_NVLINKED == peer / FAKE_NVLINKED; }
}  // namespace fake

inline const char *cudaGetErrorString(cudaError_t error) { return error == cudaErrorInvalidValue ? "invalid argument" : "error"; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int *count) {
    *count = fake::DEVICES;
    return cudaSuccess;
}
inline cudaError_t cudaGetDevice(int *device) {
    *device = fake::state.device;
    return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= fake::DEVICES) return cudaErrorInvalidDevice;
    fake::state.device = device;
    return cudaSuccess;
}
inline cudaError_t cudaMalloc(void **memory, size_t bytes) {
    const int file = memfd_create("fake_cuda", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, bytes)) return cudaErrorMemoryAllocation;
    *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (*memory == MAP_FAILED) return cudaErrorMemoryAllocation;
    std::memset(*memory, 0xa5, bytes);
    fake::state.owner[*memory] = {fake::state.device, file, bytes};
    return cudaSuccess;
}
inline cudaError_t cudaMemset(void *memory, int value, size_t bytes) {
    std::memset(memory, value, bytes);
    return cudaSuccess;
}
inline cudaError_t cudaFree(void *memory) {
    const auto found = fake::state.owner.find(memory);
    if (found == fake::state.owner.end()) return cudaErrorInvalidValue;
    munmap(memory, found->second.bytes);
    close(found->second.file);
    fake::state.owner.erase(found);
    return cudaSuccess;
}
inline cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind) {
    std::memcpy(to, from, bytes);
    return cudaSuccess;
}
inline cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    *can = device != peer;
    return cudaSuccess;
}
inline cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
    return fake::state.peers.insert({fake::state.device, peer}).second ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled;
}
inline cudaError_t cudaDeviceGetP2PAttribute(int *value, cudaDeviceP2PAttr, int device, int peer) {
    *value = fake::nvlinked(device, peer);
    return device == peer ? cudaErrorInvalidDevice : cudaSuccess;
}
inline cudaError_t cudaDeviceGetPCIBusId(char *bus, int bytes, int device) {
    std::snprintf(bus, bytes, "0000:%02x:00.0", device);
    return cudaSuccess;
}
inline cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *bus) {
    return std::sscanf(bus, "0000:%x:00.0", reinterpret_cast<unsigned *>(device)) == 1 ? cudaSuccess : cudaErrorInvalidValue;
}
inline cudaError_t cudaHostRegister(void *memory, size_t, unsigned) {
    return fake::state.registered.insert(memory).second ? cudaSuccess : cudaErrorInvalidValue;
}
inline cudaError_t cudaHostUnregister(void *memory) { return fake::state.registered.erase(memory) ? cudaSuccess : cudaErrorInvalidValue; }
inline cudaError_t cudaHostGetDevicePointer(void **there, void *memory, unsigned) {
    *there = memory;
    return fake::state.registered.count(memory) ? cudaSuccess : cudaErrorInvalidValue;
}
inline cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *memory) {
    const auto found = fake::state.owner.find(memory);
    if (found == fake::state.owner.end()) return cudaErrorInvalidValue;
    const fake::Handle own{getpid(), found->second.file, found->second.bytes, memory};
    static_assert(sizeof own <= sizeof handle->reserved);
    std::memcpy(handle->reserved, &own, sizeof own);
    return cudaSuccess;
}
inline cudaError_t cudaIpcOpenMemHandle(void **memory, cudaIpcMemHandle_t handle, unsigned) {
    fake::Handle other;
    std::memcpy(&other, handle.reserved, sizeof other);
    *memory = other.memory;
    if (other.process == getpid()) return fake::state.owner.count(*memory) ? cudaSuccess : cudaErrorInvalidValue;
    const std::string path = "/proc/" + std::to_string(other.process) + "/fd/" + std::to_string(other.file);
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) return cudaErrorInvalidValue;
    *memory = mmap(nullptr, other.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (*memory == MAP_FAILED) return cudaErrorInvalidValue;
    fake::state.opened[*memory] = other.bytes;
    return cudaSuccess;
}
inline cudaError_t cudaIpcCloseMemHandle(void *memory) {
    const auto found = fake::state.opened.find(memory);
    if (found == fake::state.opened.end()) return cudaSuccess;
    munmap(memory, found->second);
    fake::state.opened.erase(found);
    return cudaSuccess;
}
template <class Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, Kernel, int threads, size_t) {
    *blocks = fake::THREADS / threads;
    return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr, int) {
    *value = fake::PROCESSORS;
    return cudaSuccess;
}
inline cudaError_t cudaLaunchCooperativeKernel(const void *kernel, dim3 grid, dim3 block, void **parameters, size_t,
                                               cudaStream_t) {
    if (int(grid.x) > fake::PROCESSORS * (fake::THREADS / int(block.x))) return cudaErrorCooperativeLaunchTooLarge;
    const auto function = reinterpret_cast<treadle::Kernel>(reinterpret_cast<uintptr_t>(kernel));
    const treadle::Launch launch = *static_cast<treadle::Launch *>(parameters[0]);
    if (!fake::state.registered.count(fake::page_of(launch.abort.word))) return cudaErrorInvalidValue;
    fake::state.abort_words.insert(launch.abort.word);
    fake::state.world.queue(grid.x, block.x, [function, launch] { function(launch); });
#ifdef FAKE_AT_ONCE
    fake::state.world.run(1);
#endif
    return cudaSuccess;
}
// Only collectives run here, whose launches meet: no kernel goes alone, and nothing is queued behind another stream.
inline cudaError_t cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, cudaStream_t) { return cudaErrorInvalidValue; }
using cudaEvent_t = void *;
constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2;
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *, unsigned) { return cudaErrorInvalidValue; }
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaErrorInvalidValue; }
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t *, unsigned) { return cudaErrorInvalidValue; }
inline cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaErrorInvalidValue; }
inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaErrorInvalidValue; }
inline cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaErrorInvalidValue; }
inline cudaError_t cudaDeviceSynchronize() {
    if (!fake::state.world.run(1))
        for (uint32_t *word : fake::state.abort_words) treadle::set_abort(word, treadle::abort_word(treadle::DEADLOCK, 0));
    fake::state.abort_words.clear();
    return cudaSuccess;
}
