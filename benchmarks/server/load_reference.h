// What a job must come to, by loops over whole models: no chunks, no threads, and doubles where the server has floats.
#pragma once

#include <cmath>
#include <cstdio>
#include <vector>

#include "load_case.h"

namespace load {

// Weights of every version of a synchronous job, or what the mean gradients are where that is all it gives back.
class Reference {
  public:
    explicit Reference(const Case &job) : job_(job), versions_(job.steps + 1, std::vector<float>(job.elements)) {
        for (int64_t i = 0; i < job.elements; ++i) versions_[0][i] = first_weight(job, i);
        if (!job.synchronous) return;
        std::vector<double> first(job.elements), second(job.elements);
        std::vector<int> updates(job.key_elements.size());
        for (int step = 1; step <= job.steps; ++step) {
            versions_[step] = versions_[step - 1];
            double numbers[GROUPS * treadle::NUMBERS];
            settings(job, step, numbers);
            int64_t begin = 0;
            for (size_t key = 0; key < job.key_elements.size(); begin += job.key_elements[key++])
                if (!nobody(job, step, int(key)))
                    update(step, int(key), begin, numbers + job.key_group[key] * treadle::NUMBERS, ++updates[key], first, second);
        }
    }

    float weight(int version, int64_t element) const { return versions_[version][element]; }

    // Where all gradients of an asynchronous job have been applied, in any order: its numbers are exact.
    float last(int64_t element) const {
        const int key = key_of(element);
        double sum = first_weight(job_, element);
        for (int worker = 0; worker < job_.workers; ++worker)
            for (int step = 1; step <= job_.steps; ++step)
                if (worker % 2 == 0 && !empty(job_, worker, step, key)) sum -= double(gradient(job_, worker, step, element)) / 64;
        return float(sum);
    }

    // A value of a key's type is as close as that type is fine.
    bool close(float found, float expected, int type) const {
        const double part = type == treadle::FLOAT32 ? 2e-5 : type == treadle::FLOAT16 ? 1.0 / 1024 : 1.0 / 128;
        return std::fabs(double(found) - expected) <= part * (std::fabs(double(expected)) + 0.05);
    }

  private:
    int key_of(int64_t element) const {
        int key = 0;
        for (int64_t end = job_.key_elements[0]; element >= end; end += job_.key_elements[++key]) {}
        return key;
    }

    void update(int step, int key, int64_t begin, const double *numbers, int turn, std::vector<double> &first, std::vector<double> &second) {
        const int64_t end = begin + job_.key_elements[key];
        std::vector<double> direction(end - begin);
        double norm = 0, length = 0;
        for (int64_t i = begin; i < end; ++i) {
            float sum = 0;
            for (int worker = 0; worker < job_.everyone(); ++worker)
                if (!empty(job_, worker, step, key)) sum += gradient(job_, worker, step, i);
            const float mean = sum / float(job_.everyone());
            float &weight = versions_[step][i];
            const double rate = numbers[0], momentum = numbers[1], decay = numbers[3], beta1 = numbers[4], beta2 = numbers[5];
            const double decayed = mean + (job_.optimizer == treadle::LAMB ? 0 : decay * weight);
            if (job_.optimizer == treadle::MEAN) {
                weight = mean;
            } else if (job_.optimizer == treadle::SGD || job_.optimizer == treadle::NESTEROV) {
                first[i] = turn == 1 ? decayed : momentum * first[i] + decayed;
                weight = float(weight - rate * (job_.optimizer == treadle::NESTEROV ? decayed + momentum * first[i] : first[i]));
            } else {
                first[i] = beta1 * first[i] + (1 - beta1) * decayed;
                second[i] = beta2 * second[i] + (1 - beta2) * decayed * decayed;
                const double mean1 = first[i] / (1 - std::pow(beta1, turn)), mean2 = second[i] / (1 - std::pow(beta2, turn));
                direction[i - begin] = mean1 / (std::sqrt(mean2) + numbers[6]) + (job_.optimizer == treadle::LAMB ? decay * weight : 0);
                norm += double(weight) * weight, length += direction[i - begin] * direction[i - begin];
            }
        }
        if (job_.optimizer != treadle::ADAM && job_.optimizer != treadle::LAMB) return;
        const double ratio = job_.optimizer == treadle::LAMB && norm > 0 && length > 0 ? std::sqrt(norm / length) : 1;
        for (int64_t i = begin; i < end; ++i) versions_[step][i] = float(versions_[step][i] - numbers[0] * ratio * direction[i - begin]);
    }

    const Case &job_;
    std::vector<std::vector<float>> versions_;
};

// A value as it lies in an area of a worker.
inline float from_type(const void *at, int64_t index, int type) {
    if (type == treadle::FLOAT32) return static_cast<const float *>(at)[index];
    const uint16_t bits = static_cast<const uint16_t *>(at)[index];
    if (type == treadle::BFLOAT16) {
        const uint32_t wide = uint32_t(bits) << 16;
        float value;
        __builtin_memcpy(&value, &wide, 4);
        return value;
    }
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float value = exponent ? std::ldexp(1 + fraction / 1024.f, exponent - 15) : std::ldexp(fraction / 1024.f, -14);
    return bits >> 15 ? -value : value;
}

// For multiples of a quarter up to 2, which both short types hold exactly.
inline void as_type(void *at, int64_t index, float value, int type) {
    if (type == treadle::FLOAT32) {
        static_cast<float *>(at)[index] = value;
        return;
    }
    uint32_t wide;
    __builtin_memcpy(&wide, &value, 4);
    uint16_t &bits = static_cast<uint16_t *>(at)[index];
    if (type == treadle::BFLOAT16) bits = uint16_t(wide >> 16);
    else bits = value == 0 ? 0 : uint16_t(wide >> 16 & 0x8000) | uint16_t((int(wide >> 23 & 255) - 112) << 10) | uint16_t(wide >> 13 & 1023);
}

}  // namespace load
