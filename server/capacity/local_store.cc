#include "server/capacity/local_store.h"

#include <algorithm>
#include <vector>

#include "server/capacity/trace.h"

namespace quire::capacity {

LocalStore::LocalStore(const Options& options)
    : options_(options),
      dram_(std::max<std::uint64_t>(options.dram_bytes, 1), options.policy),
      disk_(options.disk_bytes, options.policy) {}

std::uint64_t LocalStore::part_key(std::uint64_t key, std::uint32_t part) const {
  return part == 0 ? key : mix(key + part * 0x9e3779b97f4a7c15ull);
}

std::uint64_t LocalStore::part_bytes(std::uint32_t tokens, std::uint32_t part) const {
  const std::uint64_t bytes = options_.bytes.kv(tokens);
  return bytes * (part + 1) / options_.parts - bytes * part / options_.parts;
}

void LocalStore::drop_parts(std::uint64_t key) {
  for (std::uint32_t p = 0; p <= options_.parts; ++p) dram_.erase(part_key(key, p));
}

LocalStore::Found LocalStore::read(std::uint64_t key, std::uint32_t tokens) {
  Found found;
  if (!disk_.touch(key)) return found;
  std::uint32_t in_dram = 0;
  // All reads are asked for at once, before anything that comes from disk evicts others.
  std::vector<std::uint32_t> missing;
  for (std::uint32_t p = 0; p < options_.parts; ++p) {
    if (dram_.touch(part_key(key, p)))
      ++in_dram;
    else
      missing.push_back(p);
  }
  for (const std::uint32_t p : missing) dram_.insert(part_key(key, p), part_bytes(tokens, p));
  found.dram = static_cast<double>(tokens) * in_dram / options_.parts;
  found.disk = tokens - found.dram;
  return found;
}

std::uint64_t LocalStore::write(std::uint64_t key, std::uint32_t tokens) {
  if (disk_.contains(key)) return 0;
  const std::uint64_t bytes = options_.bytes.stored(tokens), kv = options_.bytes.kv(tokens);
  if (!disk_.insert(key, bytes, [this](std::uint64_t gone) { drop_parts(gone); })) return 0;
  for (std::uint32_t p = 0; p < options_.parts; ++p) {
    const std::uint64_t part = part_key(key, p);
    if (!dram_.contains(part)) dram_.insert(part, part_bytes(tokens, p));
  }
  const std::uint64_t rest = part_key(key, options_.parts);
  if (bytes > kv && !dram_.contains(rest)) dram_.insert(rest, bytes - kv);
  return bytes;
}

}  // namespace quire::capacity
