// std::map: a red-black tree.
#pragma once
#include <map>
#include "ordered_map.h"

namespace treadle {
using Index = OrderedMap<std::map<uint64_t, uint64_t, std::less<uint64_t>, Counting<std::pair<const uint64_t, uint64_t>>>>;
}
