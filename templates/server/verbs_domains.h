// Pins threads to the processors of NUMA domains, by libnuma where it is installed.
#pragma once

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <vector>

namespace treadle {

// The processors of a domain: all of them where there is no libnuma.
inline std::vector<int> processors(int domain) {
    struct Mask;
    std::vector<int> found;
    const long count = sysconf(_SC_NPROCESSORS_CONF);
    void *const library = dlopen("libnuma.so.1", RTLD_NOW);
    const auto available = library ? reinterpret_cast<int (*)()>(dlsym(library, "numa_available")) : nullptr;
    if (available && available() >= 0) {
        const auto make = reinterpret_cast<Mask *(*)()>(dlsym(library, "numa_allocate_cpumask"));
        const auto read = reinterpret_cast<int (*)(int, Mask *)>(dlsym(library, "numa_node_to_cpus"));
        const auto in = reinterpret_cast<int (*)(const Mask *, unsigned)>(dlsym(library, "numa_bitmask_isbitset"));
        Mask *const mask = make();
        if (!read(domain, mask))
            for (int cpu = 0; cpu < count; ++cpu)
                if (in(mask, unsigned(cpu))) found.push_back(cpu);
    }
    if (found.empty())
        for (int cpu = 0; cpu < count; ++cpu) found.push_back(cpu);
    return found;
}

// Pins the calling thread to core number `core` of a domain.
inline void pin(int domain, int core) {
    const std::vector<int> cpus = processors(domain);
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpus[size_t(core) % cpus.size()], &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

}  // namespace treadle
