/// This file declares the disk tier: records in RocksDB, values of segments in extents. It includes
/// no RocksDB type, because RocksDB compiles slowly.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cachestore/disk/disk_tier.h"
#include "cachestore/disk/store_folder.h"

namespace quire {

struct RocksDbTierOptions {
  bool direct_io = true;
  bool read_only = false;
  std::uint64_t max_bytes = 0;  ///< the store's budget; sizes of files follow from it
  /// Size of the file system, from which sizes of files follow where there is no budget: RocksDB
  /// goes on after a full disk once a buffer's size is free. 0: unknown.
  std::uint64_t disk_bytes = 0;
  std::uint64_t extent_bytes = 256ull << 20;
  bool punch_holes = true;  ///< false: as on a file system without holes
  /// Folder of a second copy of the records, made if its parent exists; empty: none.
  std::string copy_path;
};

/// Opens the tier and takes ownership of the folder and its lock. Errors: kCorruption, kIo,
/// kResourceExhausted, each naming the folder.
Result<std::unique_ptr<DiskTier>> open_rocksdb_tier(StoreFolder folder,
                                                    const RocksDbTierOptions& options);

}  // namespace quire
