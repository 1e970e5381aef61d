// cuDNN for the tests: convolution by its definition on host memory, with strict checks of what it is handed.
// Algorithm a of direction d asks for 100 * a + d bytes of workspace, fills them, and refuses strides where a is 4 or more.
#include <cudnn.h>

#include <cstring>

struct cudnnContext {
  cudaStream_t stream;
};
struct cudnnTensorStruct {
  cudnnDataType_t type;
  int size[4];
};
struct cudnnFilterStruct {
  cudnnDataType_t type;
  int size[4];
};
struct cudnnConvolutionStruct {
  int pad[2], stride[2], dilation[2], groups;
  cudnnDataType_t compute;
  cudnnMathType_t math;
};

static int last[4];

// Direction, algorithm, math type and stream of the last call that ran.
extern "C" const int* fake_cudnn_last() { return last; }

template <typename T>
static void convolve(int direction, cudnnTensorDescriptor_t xd, T* x, cudnnFilterDescriptor_t wd, T* w,
                     cudnnConvolutionDescriptor_t cd, cudnnTensorDescriptor_t yd, T* y) {
  const int *X = xd->size, *W = wd->size, *Y = yd->size;
  T* made = direction == 0 ? y : direction == 1 ? x : w;
  const int* size = direction == 0 ? Y : direction == 1 ? X : W;
  std::memset(made, 0, sizeof(T) * size[0] * size[1] * size[2] * size[3]);
  const int outer = W[0] / cd->groups;
  for (int n = 0; n < X[0]; n++)
    for (int k = 0; k < W[0]; k++)
      for (int c = 0; c < W[1]; c++)
        for (int p = 0; p < Y[2]; p++)
          for (int q = 0; q < Y[3]; q++)
            for (int r = 0; r < W[2]; r++)
              for (int s = 0; s < W[3]; s++) {
                const int i = p * cd->stride[0] - cd->pad[0] + r * cd->dilation[0];
                const int j = q * cd->stride[1] - cd->pad[1] + s * cd->dilation[1];
                if (i < 0 || j < 0 || i >= X[2] || j >= X[3]) continue;
                T& from = x[((n * X[1] + k / outer * W[1] + c) * X[2] + i) * X[3] + j];
                T& weight = w[((k * W[1] + c) * W[2] + r) * W[3] + s];
                T& into = y[((n * Y[1] + k) * Y[2] + p) * Y[3] + q];
                if (direction == 0) into += from * weight;
                if (direction == 1) from += into * weight;
                if (direction == 2) weight += into * from;
              }
}

static cudnnStatus_t wanted(cudnnConvolutionDescriptor_t window, int direction, int algorithm, size_t* bytes) {
  if (algorithm >= 4 && window->stride[0] * window->stride[1] > 1) return CUDNN_STATUS_NOT_SUPPORTED;
  *bytes = 100 * algorithm + direction;
  return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t run(int direction, int algorithm, cudnnHandle_t handle, const void* alpha, const void* beta,
                         cudnnTensorDescriptor_t xd, void* x, cudnnFilterDescriptor_t wd, void* w,
                         cudnnConvolutionDescriptor_t window, cudnnTensorDescriptor_t yd, void* y, void* workspace,
                         size_t bytes) {
  size_t needed = 0;
  if (cudnnStatus_t status = wanted(window, direction, algorithm, &needed)) return status;
  if (bytes < needed || xd->type != wd->type || xd->type != yd->type) return CUDNN_STATUS_BAD_PARAM;
  std::memset(workspace, 0xff, needed);
  if (xd->type == CUDNN_DATA_DOUBLE) {
    if (*static_cast<const double*>(alpha) != 1 || *static_cast<const double*>(beta) != 0) return CUDNN_STATUS_BAD_PARAM;
    convolve(direction, xd, static_cast<double*>(x), wd, static_cast<double*>(w), window, yd, static_cast<double*>(y));
  } else if (xd->type == CUDNN_DATA_FLOAT) {
    if (*static_cast<const float*>(alpha) != 1 || *static_cast<const float*>(beta) != 0) return CUDNN_STATUS_BAD_PARAM;
    convolve(direction, xd, static_cast<float*>(x), wd, static_cast<float*>(w), window, yd, static_cast<float*>(y));
  } else {
    return CUDNN_STATUS_NOT_SUPPORTED;
  }
  last[0] = direction, last[1] = algorithm, last[2] = window->math;
  last[3] = static_cast<int>(reinterpret_cast<size_t>(handle->stream));
  return CUDNN_STATUS_SUCCESS;
}

extern "C" {
const char* cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED" : "CUDNN_STATUS_BAD_PARAM";
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) { return *handle = new cudnnContext{}, CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { return delete handle, CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  return handle->stream = stream, CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* made) {
  return *made = new cudnnTensorStruct{}, CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensor) { return delete tensor, CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnSetTensor4dDescriptor(
    cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t, cudnnDataType_t type, int n, int c, int h, int w) {
  return *tensor = {type, {n, c, h, w}}, CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* made) {
  return *made = new cudnnFilterStruct{}, CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t filter) { return delete filter, CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnSetFilter4dDescriptor(
    cudnnFilterDescriptor_t filter, cudnnDataType_t type, cudnnTensorFormat_t, int k, int c, int h, int w) {
  return *filter = {type, {k, c, h, w}}, CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* made) {
  return *made = new cudnnConvolutionStruct{}, CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t window) {
  return delete window, CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolution2dDescriptor(
    cudnnConvolutionDescriptor_t window, int pad_h, int pad_w, int u, int v, int dilation_h, int dilation_w,
    cudnnConvolutionMode_t mode, cudnnDataType_t compute) {
  if (mode != CUDNN_CROSS_CORRELATION) return CUDNN_STATUS_BAD_PARAM;
  *window = {{pad_h, pad_w}, {u, v}, {dilation_h, dilation_w}, 1, compute, CUDNN_DEFAULT_MATH};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t window, int groups) {
  return window->groups = groups, CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t window, cudnnMathType_t math) {
  return window->math = math, CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(
    cudnnHandle_t, const cudnnTensorDescriptor_t, const cudnnFilterDescriptor_t,
    const cudnnConvolutionDescriptor_t window, const cudnnTensorDescriptor_t, cudnnConvolutionFwdAlgo_t algorithm,
    size_t* bytes) {
  return wanted(window, 0, algorithm, bytes);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(
    cudnnHandle_t, const cudnnFilterDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnConvolutionDescriptor_t window, const cudnnTensorDescriptor_t, cudnnConvolutionBwdDataAlgo_t algorithm,
    size_t* bytes) {
  return wanted(window, 1, algorithm, bytes);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnConvolutionDescriptor_t window, const cudnnFilterDescriptor_t, cudnnConvolutionBwdFilterAlgo_t algorithm,
    size_t* bytes) {
  return wanted(window, 2, algorithm, bytes);
}
cudnnStatus_t cudnnConvolutionForward(
    cudnnHandle_t handle, const void* alpha, const cudnnTensorDescriptor_t xd, const void* x,
    const cudnnFilterDescriptor_t wd, const void* w, const cudnnConvolutionDescriptor_t window,
    cudnnConvolutionFwdAlgo_t algorithm, void* workspace, size_t bytes, const void* beta,
    const cudnnTensorDescriptor_t yd, void* y) {
  return run(0, algorithm, handle, alpha, beta, xd, const_cast<void*>(x), wd, const_cast<void*>(w), window, yd, y,
             workspace, bytes);
}
cudnnStatus_t cudnnConvolutionBackwardData(
    cudnnHandle_t handle, const void* alpha, const cudnnFilterDescriptor_t wd, const void* w,
    const cudnnTensorDescriptor_t yd, const void* y, const cudnnConvolutionDescriptor_t window,
    cudnnConvolutionBwdDataAlgo_t algorithm, void* workspace, size_t bytes, const void* beta,
    const cudnnTensorDescriptor_t xd, void* x) {
  return run(1, algorithm, handle, alpha, beta, xd, x, wd, const_cast<void*>(w), window, yd, const_cast<void*>(y),
             workspace, bytes);
}
cudnnStatus_t cudnnConvolutionBackwardFilter(
    cudnnHandle_t handle, const void* alpha, const cudnnTensorDescriptor_t xd, const void* x,
    const cudnnTensorDescriptor_t yd, const void* y, const cudnnConvolutionDescriptor_t window,
    cudnnConvolutionBwdFilterAlgo_t algorithm, void* workspace, size_t bytes, const void* beta,
    const cudnnFilterDescriptor_t wd, void* w) {
  return run(2, algorithm, handle, alpha, beta, xd, const_cast<void*>(x), wd, w, window, yd, const_cast<void*>(y),
             workspace, bytes);
}
}
