// What the transfers call of NCCL, as its header declares it, for machines that have only the library: PyTorch ships
// libnccl.so without nccl.h.
#pragma once
#if __has_include(<nccl.h>)
#include <nccl.h>
#else
#include <cuda_runtime.h>

#include <cstddef>

extern "C" {
typedef struct ncclComm *ncclComm_t;
typedef enum { ncclSuccess = 0 } ncclResult_t;
typedef enum { ncclUint8 = 1 } ncclDataType_t;
const char *ncclGetErrorString(ncclResult_t result);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator, cudaStream_t stream);
ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator, cudaStream_t stream);
}
#endif
