/// The disk tier over RocksDB. Shows no RocksDB type: it compiles slowly and stays behind this
/// door.
#pragma once

#include <cstdint>
#include <memory>

#include "cachestore/disk_tier.h"
#include "cachestore/store_folder.h"

namespace quire {

struct RocksDbTierOptions {
  bool direct_io = true;
  bool read_only = false;
  std::uint64_t max_bytes = 0;  ///< the store's budget: sizes the manifest's limit
};

/// Takes the folder (and its lock). Errors: kCorruption, kIo, kResourceExhausted, each naming the
/// folder.
Result<std::unique_ptr<DiskTier>> open_rocksdb_tier(StoreFolder folder,
                                                    const RocksDbTierOptions& options);

}  // namespace quire
