// Threads of a CPU for the kernels of gradients.
#pragma once
#include <cstdint>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace treadle {

// `work(part, begin, end)` for each of `parts` parts of [0, count), on a thread each.
template <class Work>
void parallel(int parts, int64_t count, const Work &work) {
    std::vector<std::exception_ptr> errors(parts);
    const auto run = [&](int part) {
        try {
            work(part, count * part / parts, count * (part + 1) / parts);
        } catch (...) {
            errors[part] = std::current_exception();
        }
    };
    std::vector<std::thread> helpers;
    helpers.reserve(parts);
    for (int part = 1; part < parts; ++part) {
        try {
            helpers.emplace_back(run, part);
        } catch (const std::system_error &) {
            run(part);  // there are no more threads
        }
    }
    run(0);
    for (auto &helper : helpers) helper.join();
    for (const auto &error : errors)
        if (error) std::rethrow_exception(error);
}

}  // namespace treadle
