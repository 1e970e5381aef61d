// absl::btree_map: a B+tree with nodes of 256 bytes.
#pragma once
#include <absl/container/btree_map.h>
#include "ordered_map.h"

namespace treadle {
using Index =
    OrderedMap<absl::btree_map<uint64_t, uint64_t, std::less<uint64_t>, Counting<std::pair<const uint64_t, uint64_t>>>>;
}
