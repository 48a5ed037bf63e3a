#include "server/config/quotas_file.h"

#include <cmath>
#include <optional>

#include "server/config/byte_size.h"
#include "server/config/namespace_tables.h"

namespace quire {
namespace {

constexpr const char* kField = "cache.quotas_file";
constexpr double kSmallestShare = 1e-6, kLargestShare = 1e6;

Status wrong(const std::string& message) { return Status::invalid(kField, message); }

std::optional<std::int64_t> bytes_of(const toml::node& node) {
  if (const auto number = node.value_exact<std::int64_t>()) return number;
  if (const auto text = node.value_exact<std::string>()) return parse_byte_size(*text);
  return std::nullopt;
}

Status read_quota(const std::string& place, const toml::table& table, TenantQuota& out) {
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    if (name == "share") {
      const auto share = node.value<double>();
      if (!share || !(*share >= kSmallestShare && *share <= kLargestShare))
        return wrong(place + ": share must be a number from 0.000001 to 1000000");
      out.share = *share;
      continue;
    }
    std::uint64_t* const bytes = name == "dram_bytes"     ? &out.dram_bytes
                                 : name == "disk_bytes"   ? &out.disk_bytes
                                 : name == "remote_bytes" ? &out.remote_bytes
                                                          : nullptr;
    if (bytes == nullptr)
      return wrong(place + ": unknown entry '" + name +
                   "'; use dram_bytes, disk_bytes, "
                   "remote_bytes or share");
    const auto value = bytes_of(node);
    if (!value || *value < 0)
      return wrong(place + ": " + name +
                   " must be a number of bytes, such as 2147483648 or \"2GiB\"; "
                   "0 is no limit");
    *bytes = static_cast<std::uint64_t>(*value);
  }
  return {};
}

}  // namespace

Result<TenantQuotas> parse_quotas(std::string_view text, const std::string& file_name) {
  TenantQuotas out;
  QUIRE_RETURN_IF_ERROR(read_namespace_tables(
      text, file_name, kField,
      [&](const std::string& name, const std::string& place, const toml::table& table) {
        return read_quota(place, table, name == "*" ? out.others : out.named[name]);
      }));
  out.enabled = true;
  return out;
}

Result<TenantQuotas> load_quotas(const std::string& path) {
  if (path.empty()) return TenantQuotas();
  QUIRE_ASSIGN_OR_RETURN(const std::string text, read_config_file(path, kField));
  return parse_quotas(text, path);
}

}  // namespace quire
