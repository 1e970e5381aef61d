// The class interface of treadle_index.hpp for an ordered map of the C++ kind, so that treadle_index_c.cpp serves it too.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <new>
#include <utility>
#include <vector>

namespace treadle {

enum class Leaves : uint32_t { gapped_array = 0, fragmented_log = 1 };

struct Settings {
  Leaves leaves = Leaves::gapped_array;
  double most_search = 0, most_shifts = 0;
  uint32_t fragment_keys = 0, most_fragments = 0, new_fragments = 0;
  double insert_share = 0;
  uint32_t flags = 0;
};

struct Counts {
  uint64_t inner_nodes = 0, leaves = 0, fragments = 0, empty_fragment_slots = 0, depth = 0, expansions = 0, splits = 0, growths = 0,
           multiplications = 0, fullest_fragment = 0;
};

inline uint64_t allocated_bytes = 0;  // of all maps: a benchmark has one at a time

template <typename T>
struct Counting {
  using value_type = T;
  Counting() = default;
  template <typename U>
  Counting(const Counting<U>&) {}
  T* allocate(size_t n) {
    T* made = static_cast<T*>(::operator new(n * sizeof(T)));
    allocated_bytes += n * sizeof(T);
    return made;
  }
  void deallocate(T* p, size_t n) {
    allocated_bytes -= n * sizeof(T);
    ::operator delete(p);
  }
  friend bool operator==(const Counting&, const Counting&) { return true; }
  friend bool operator!=(const Counting&, const Counting&) { return false; }
};

template <typename Map>
class OrderedMap {
 public:
  using Iterator = typename Map::const_iterator;
  explicit OrderedMap(const Settings&) {}
  bool bulk_load(const uint64_t* keys, const uint64_t* payloads, size_t n) {
    for (size_t i = 1; i < n; ++i)
      if (keys[i] <= keys[i - 1]) return false;
    if (!map_.empty()) return false;
    for (size_t i = 0; i < n; ++i) map_.emplace_hint(map_.end(), keys[i], payloads[i]);
    return true;
  }
  bool lookup(uint64_t key, uint64_t* payload) const {
    auto found = map_.find(key);
    if (found == map_.end()) return false;
    *payload = found->second;
    return true;
  }
  bool insert(uint64_t key, uint64_t payload) { return map_.emplace(key, payload).second; }
  bool erase(uint64_t key) { return map_.erase(key) != 0; }
  size_t scan(uint64_t from, size_t count, uint64_t* keys, uint64_t* payloads) const {
    size_t n = 0;
    for (auto at = map_.lower_bound(from); n < count && at != map_.end(); ++at, ++n) {
      keys[n] = at->first;
      payloads[n] = at->second;
    }
    return n;
  }
  size_t size() const { return map_.size(); }
  size_t bytes() const { return sizeof *this + allocated_bytes; }
  Counts counts() const { return {}; }
  const char* broken() const { return nullptr; }

 private:
  Map map_;
};

}  // namespace treadle
