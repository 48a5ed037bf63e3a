/// Reads the file of the KV quotas of namespaces (cache.quotas_file).
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "cachestore/format/tenant_quotas.h"

namespace quire {

/// Parses a TOML text with a table for each namespace, or "*" for all others: `dram_bytes`,
/// `disk_bytes` and `remote_bytes` are numbers or texts such as "2GiB", `share` is a number above
/// 0. Errors: kInvalidArgument (field "cache.quotas_file") with `file_name` and the entry.
Result<TenantQuotas> parse_quotas(std::string_view text, const std::string& file_name);
/// Reads the file; an empty path gives no quotas. Errors: also kInvalidArgument for a file that
/// cannot be read.
Result<TenantQuotas> load_quotas(const std::string& path);

}  // namespace quire
