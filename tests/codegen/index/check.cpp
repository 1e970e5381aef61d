// check oracles | check memory | check random OPERATIONS EVERY FIRST_FAMILY END_FAMILY
#include "memory.h"
#include "oracles.h"
#include "random_operations.h"

int main(int count, char** words) {
    const std::string what = words[1];
    if (what == "oracles") return oracles::run();
    if (what == "memory") return memory::run();
    if (count != 6) return 2;
    return random_operations::run(std::strtoull(words[2], nullptr, 10), std::strtoull(words[3], nullptr, 10),
                                  std::atoi(words[4]), std::atoi(words[5]));
}
