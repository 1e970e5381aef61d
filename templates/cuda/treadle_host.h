// What every driver needs: the platform that the text is compiled for, and functions that C can call.
#pragma once
#include <stdexcept>
#include <string>

// A test may put the CUDA platform, over a stand-in for the CUDA runtime, on the host body of the device header.
#ifndef TREADLE_PLATFORM
#ifdef __CUDACC__
#define TREADLE_PLATFORM "treadle_platform_cuda.h"
#elif defined(TREADLE_PROCESS)
#define TREADLE_PLATFORM "treadle_platform_process.h"
#else
#define TREADLE_PLATFORM "treadle_platform_fibers.h"
#endif
#endif
#include TREADLE_PLATFORM

#define TREADLE_API extern "C" __attribute__((visibility("default")))

namespace treadle {

inline thread_local std::string message;

// Runs `work`; 0 when all is well, 1 with a message otherwise.
template <class Work>
int guarded(const Work &work) {
    try {
        work();
        return 0;
    } catch (const std::exception &error) {
        message = error.what();
        return 1;
    }
}

}  // namespace treadle
