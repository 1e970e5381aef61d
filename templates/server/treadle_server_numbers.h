// What happens to one number on the server: conversions, gradients, steps of the optimizers. Processors and GPUs share
// this text, and both round as PyTorch does on processors: each product and sum on its own, but for `fma`, where its
// vector code has one.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define TREADLE_EITHER __host__ __device__ __forceinline__
#else
#define TREADLE_EITHER inline __attribute__((always_inline))
#endif

namespace treadle::kernels {

// As in job.h, which names of devices would collide with.
enum Optimizer : int32_t { MEAN = 0, SGD = 1, NESTEROV = 2, ADAM = 3, LAMB = 4 };
enum Type : int32_t { FLOAT32 = 0, FLOAT16 = 1, BFLOAT16 = 2 };

// Places in a group of settings. The last three are 0 or 1; AdamW's decay is decoupled.
enum Setting { LR, MOMENTUM, DAMPENING, DECAY, BETA1, BETA2, EPS, MAXIMIZE, NESTEROV_STEP, DECOUPLED };

// A step of an optimizer for `n` elements: from the sum of gradients, weights and states to those of the next version.
// `update` counts from 1. SGD has one state, Adam and LAMB have two. Old and new may be the same memory, but for the
// weights of LAMB.
struct Update {
    int optimizer;
    const double *settings;
    float divisor;
    int64_t n;
    uint64_t update;
    const float *sum, *weight_in;
    float *weight_out;
    const float *state_in[2];
    float *state_out[2];
    double ratio;  // of LAMB, once the norms of the whole key are known
};

template <class To, class From>
TREADLE_EITHER To as(From from) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

// A product that the compiler joins with no sum.
TREADLE_EITHER float product(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fmul_rn(a, b);
#else
    return a * b;
#endif
}

// Both forms of 16 bits are rounded to nearest, ties to even, without branches.
TREADLE_EITHER float widen_half(uint16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000) << 16, rest = uint32_t(h & 0x7fff) << 13;
    const uint32_t normal = rest + ((h & 0x7c00) == 0x7c00 ? 224u << 23 : 112u << 23);
    const uint32_t small = as<uint32_t>(as<float>(rest + (113u << 23)) - 0x1p-14f);
    return as<float>(sign | ((h & 0x7c00) ? normal : small));
}
TREADLE_EITHER uint16_t narrow_half(float f) {
    const uint32_t u = as<uint32_t>(f), sign = u >> 16 & 0x8000, rest = u & 0x7fffffffu;
    const uint32_t normal = (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1)) >> 13;
    const uint32_t small = as<uint32_t>(as<float>(rest) + 0.5f) - 0x3f000000u;
    const uint32_t large = rest > 0x7f800000u ? 0x7e00u : 0x7c00u;
    return uint16_t(sign | (rest >= 0x477ff000u ? large : rest < 0x38800000u ? small : normal));
}
TREADLE_EITHER float widen_brain(uint16_t h) { return as<float>(uint32_t(h) << 16); }
TREADLE_EITHER uint16_t narrow_brain(float f) {
    const uint32_t u = as<uint32_t>(f), rounded = (u + 0x7fffu + (u >> 16 & 1)) >> 16;
    return uint16_t((u & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

// The settings of one step, rounded where PyTorch rounds them.
struct Factors {
    double rate;
    float divisor, decay, shrink, lr, momentum, damped, toward, beta2, square, mean_scale, scale, eps, step;
    float sign;                                        // -1 to maximize
    bool decays, apart, near, nesterov, moves, first;  // decays: within the gradient; apart: elsewhere
};

inline Factors factors(const Update &update) {
    const double *s = update.settings;
    Factors f{};
    f.divisor = update.divisor;
    if (update.optimizer == MEAN) return f;
    const bool pairs = update.optimizer == ADAM || update.optimizer == LAMB;
    f.apart = s[DECAY] != 0 && (update.optimizer == LAMB || (update.optimizer == ADAM && s[DECOUPLED] != 0));
    f.decays = s[DECAY] != 0 && !f.apart;
    f.decay = float(s[DECAY]);
    f.shrink = float(1 - s[LR] * s[DECAY]);
    f.sign = s[MAXIMIZE] != 0 ? -1.0f : 1.0f;
    f.rate = s[LR];
    f.lr = float(-s[LR]);
    f.momentum = float(s[MOMENTUM]);
    f.damped = float(1 - s[DAMPENING]);
    f.moves = s[MOMENTUM] != 0;
    f.nesterov = update.optimizer == NESTEROV || s[NESTEROV_STEP] != 0;
    f.first = update.update == 1;
    if (!pairs) return f;
    const double first = 1 - std::pow(s[BETA1], double(update.update));
    const double second = 1 - std::pow(s[BETA2], double(update.update));
    f.toward = float(1 - s[BETA1]);
    f.near = std::fabs(f.toward) < 0.5f;
    f.beta2 = float(s[BETA2]);
    f.square = float(1 - s[BETA2]);
    f.mean_scale = float(first);
    f.scale = float(std::pow(second, 0.5));
    f.eps = float(s[EPS]);
    f.step = float(-(s[LR] / first));
    return f;
}

TREADLE_EITHER float mean_of(const Factors &f, float sum) { return sum / f.divisor; }

TREADLE_EITHER float gradient_of(const Factors &f, float sum, float weight) {
    const float gradient = product(mean_of(f, sum), f.sign);
    return f.decays ? fmaf(f.decay, weight, gradient) : gradient;
}

// The new weight; `state` becomes the new momentum.
TREADLE_EITHER float sgd(const Factors &f, float sum, float weight, float &state) {
    float gradient = gradient_of(f, sum, weight);
    if (f.moves) {
        state = f.first ? gradient : fmaf(f.damped, gradient, product(f.momentum, state));
        gradient = f.nesterov ? fmaf(f.momentum, state, gradient) : state;
    }
    return fmaf(f.lr, gradient, weight);
}

// Both moments, of Adam and LAMB.
TREADLE_EITHER void moments(const Factors &f, float gradient, float &first, float &second) {
    const float difference = gradient - first;
    first = f.near ? fmaf(f.toward, difference, first) : fmaf(f.toward - 1, difference, gradient);
    second = fmaf(f.square * gradient, gradient, f.beta2 * second);
}

// The new weight of Adam, AdamW where the decay is decoupled. `root` is the square root of the second moment.
TREADLE_EITHER float adam(const Factors &f, float weight, float first, float root) {
    const float kept = f.apart ? product(weight, f.shrink) : weight;
    return kept + f.step * first / (root / f.scale + f.eps);
}

// The direction of LAMB ("Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", algorithm 2).
TREADLE_EITHER float lamb(const Factors &f, float weight, float first, float root) {
    const float direction = first / f.mean_scale / (root / f.scale + f.eps);
    return f.apart ? fmaf(f.decay, weight, direction) : direction;
}

// What its direction is multiplied by, once the norms of the whole key are known.
TREADLE_EITHER float lamb_step(const Factors &f, double ratio) { return float(-(f.rate * ratio)); }

}  // namespace treadle::kernels
