// Convolutions by a named cuDNN algorithm, never by cuDNN's own choice, in a workspace that the caller brings.
// Plain C functions for ctypes; each returns nullptr or what went wrong, which lasts until the next call of the thread.
// Tensors are contiguous: x [N, C, H, W], weight [K, C / groups, R, S], y [N, K, P, Q].
#include <cudnn.h>

#include <map>
#include <memory>
#include <string>

namespace {

thread_local std::string failure;

struct Failed {
  cudnnStatus_t status;
  const char* call;
};

void check(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS) throw Failed{status, call};
}
#define CHECKED(call) check(call, #call)

enum Direction { FORWARD = 0, INPUT = 1, WEIGHT = 2 };

// As treadle.kernels.convolution_cudnn fills it.
struct Numbers {
  int direction, algorithm, device, dtype, tf32;
  int x[4], weight[4], y[4], stride[2], padding[2], dilation[2], groups;
};

template <typename T, cudnnStatus_t (*create)(T*), cudnnStatus_t (*destroy)(T)>
struct Owned {
  T value{};
  Owned() { CHECKED(create(&value)); }
  Owned(const Owned&) = delete;
  ~Owned() { destroy(value); }
  operator T() const { return value; }
};
using Tensor = Owned<cudnnTensorDescriptor_t, cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor>;
using Filter = Owned<cudnnFilterDescriptor_t, cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor>;
using Window = Owned<cudnnConvolutionDescriptor_t, cudnnCreateConvolutionDescriptor, cudnnDestroyConvolutionDescriptor>;
using Handle = Owned<cudnnHandle_t, cudnnCreate, cudnnDestroy>;

// One for each thread and device, kept until the process ends: cuDNN may be gone before thread-local objects are.
cudnnHandle_t handle(int device) {
  thread_local auto* handles = new std::map<int, std::unique_ptr<Handle>>;
  auto& found = (*handles)[device];
  if (!found) found = std::make_unique<Handle>();
  return *found;
}

struct Problem {
  cudnnHandle_t handle;
  Tensor x, y;
  Filter weight;
  Window window;

  explicit Problem(const Numbers& n) : handle(::handle(n.device)) {
    static const cudnnDataType_t types[] = {CUDNN_DATA_FLOAT, CUDNN_DATA_DOUBLE, CUDNN_DATA_HALF, CUDNN_DATA_BFLOAT16};
    const cudnnDataType_t type = types[n.dtype], sum = n.dtype == 1 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
    CHECKED(cudnnSetTensor4dDescriptor(x, CUDNN_TENSOR_NCHW, type, n.x[0], n.x[1], n.x[2], n.x[3]));
    CHECKED(cudnnSetTensor4dDescriptor(y, CUDNN_TENSOR_NCHW, type, n.y[0], n.y[1], n.y[2], n.y[3]));
    CHECKED(cudnnSetFilter4dDescriptor(
        weight, type, CUDNN_TENSOR_NCHW, n.weight[0], n.weight[1], n.weight[2], n.weight[3]));
    CHECKED(cudnnSetConvolution2dDescriptor(
        window, n.padding[0], n.padding[1], n.stride[0], n.stride[1], n.dilation[0], n.dilation[1],
        CUDNN_CROSS_CORRELATION, sum));
    CHECKED(cudnnSetConvolutionGroupCount(window, n.groups));
    const bool exact = n.dtype <= 1 && !n.tf32;
    CHECKED(cudnnSetConvolutionMathType(window, exact ? CUDNN_FMA_MATH : CUDNN_DEFAULT_MATH));
  }
};

template <typename Work>
const char* guarded(Work work) {
  try {
    work();
    return nullptr;
  } catch (const Failed& error) {
    failure = std::string(error.call).substr(0, std::string(error.call).find('('));
    failure += std::string(": ") + cudnnGetErrorString(error.status);
  } catch (const std::exception& error) {
    failure = error.what();
  }
  return failure.c_str();
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED const char* treadle_cudnn_workspace(const Numbers* n, size_t* bytes) {
  return guarded([&] {
    Problem p(*n);
    if (n->direction == FORWARD) {
      CHECKED(cudnnGetConvolutionForwardWorkspaceSize(
          p.handle, p.x, p.weight, p.window, p.y, static_cast<cudnnConvolutionFwdAlgo_t>(n->algorithm), bytes));
    } else if (n->direction == INPUT) {
      CHECKED(cudnnGetConvolutionBackwardDataWorkspaceSize(
          p.handle, p.weight, p.y, p.window, p.x, static_cast<cudnnConvolutionBwdDataAlgo_t>(n->algorithm), bytes));
    } else {
      CHECKED(cudnnGetConvolutionBackwardFilterWorkspaceSize(
          p.handle, p.x, p.y, p.window, p.weight, static_cast<cudnnConvolutionBwdFilterAlgo_t>(n->algorithm), bytes));
    }
  });
}

// Writes y, or the gradient of x or of the weight into its place; the other two are read.
EXPORTED const char* treadle_cudnn_run(
    const Numbers* n, void* x, void* weight, void* y, void* workspace, size_t bytes, void* stream) {
  return guarded([&] {
    Problem p(*n);
    CHECKED(cudnnSetStream(p.handle, static_cast<cudaStream_t>(stream)));
    const float ones[] = {1, 0};
    const double wide[] = {1, 0};
    const bool is_double = n->dtype == 1;
    const void* alpha = is_double ? static_cast<const void*>(&wide[0]) : &ones[0];
    const void* beta = is_double ? static_cast<const void*>(&wide[1]) : &ones[1];
    if (n->direction == FORWARD) {
      CHECKED(cudnnConvolutionForward(
          p.handle, alpha, p.x, x, p.weight, weight, p.window, static_cast<cudnnConvolutionFwdAlgo_t>(n->algorithm),
          workspace, bytes, beta, p.y, y));
    } else if (n->direction == INPUT) {
      CHECKED(cudnnConvolutionBackwardData(
          p.handle, alpha, p.weight, weight, p.y, y, p.window,
          static_cast<cudnnConvolutionBwdDataAlgo_t>(n->algorithm), workspace, bytes, beta, p.x, x));
    } else {
      CHECKED(cudnnConvolutionBackwardFilter(
          p.handle, alpha, p.x, x, p.y, y, p.window, static_cast<cudnnConvolutionBwdFilterAlgo_t>(n->algorithm),
          workspace, bytes, beta, p.weight, weight));
    }
  });
}
