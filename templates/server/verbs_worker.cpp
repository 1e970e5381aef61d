// A worker that tries the plan: ./worker WORKER STEPS HOST:PORT... . All its gradients are WORKER + 1, all weights are 10
// at first. It prints the new weights of each key and fails where they differ within a key.
#include "worker.h"

using namespace treadle;

static float number_at(const char *data, int64_t at, int type) {
    if (type == kernels::FLOAT32) return reinterpret_cast<const float *>(data)[at];
    const uint16_t half = reinterpret_cast<const uint16_t *>(data)[at];
    return type == kernels::FLOAT16 ? kernels::widen_half(half) : kernels::widen_brain(half);
}

int main(int count, char **words) {
    if (count < 4) fail(BAD_INPUT, "expected WORKER STEPS HOST:PORT...");
    const int number = atoi(words[1]), keys = int(std::size(plan::KEYS));
    if (number < 0 || number >= plan::WORKERS) fail(BAD_INPUT, "found worker %s, expected one below %d", words[1], plan::WORKERS);
    int64_t elements = 0, longest = 0;
    for (const plan::Key &key : plan::KEYS) {
        elements += key.elements;
        longest = key.elements > longest ? key.elements : longest;
    }
    const std::vector<float> weights(size_t(number ? 0 : elements), 10.0f), gradient(size_t(longest), float(number + 1));
    Worker worker(number, {words + 3, words + count}, number ? nullptr : weights.data());
    for (int key = 0; key < keys; ++key) kernels::to_type(worker.gradient(key), gradient.data(), plan::KEYS[key].elements, plan::KEYS[key].type);
    for (int step = 0; step < atoi(words[2]); ++step) {
        for (int key = 0; key < keys; ++key) worker.push_pull(key);
        for (int key = 0; key < keys; ++key) worker.wait(key);
    }
    for (int key = 0; key < keys; ++key) {
        const plan::Key &it = plan::KEYS[key];
        const float first = number_at(worker.value(key), 0, it.type);
        for (int64_t at = 0; at < it.elements; ++at)
            if (number_at(worker.value(key), at, it.type) != first) fail(FAILED, "key %s: element %lld differs from the first", it.name, (long long)at);
        printf("%s %.9g\n", it.name, double(first));
    }
}
