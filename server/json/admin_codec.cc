#include "server/json/admin_codec.h"

namespace quire {
namespace json = boost::json;
namespace {

constexpr std::size_t kMaxIds = 100'000;
constexpr std::int64_t kMost = std::int64_t{1} << 53;

void read_tier(JsonReader& r, Tier& out) {
  std::string tier;
  r.one_of("tier", tier, {"dram", "disk"});
  if (tier == "dram") out = Tier::kDram;
  if (tier == "disk") out = Tier::kDisk;
}

}  // namespace

std::optional<JsonError> read_evict(const json::value& body, EvictBody& out) {
  JsonReader r(body, "");
  if (!r.ok()) return r.error();
  read_tier(r, out.tier);
  out.document_ids = r.strings("document_ids", kMaxIds);
  if (r.has("older_than_seconds")) {
    std::int64_t seconds = 0;
    r.integer("older_than_seconds", seconds, 0, 10'000'000'000);
    out.older_than_seconds = seconds;
  }
  std::int64_t target = 0;
  r.integer("target_bytes", target, 0, kMost);
  out.target_bytes = static_cast<std::uint64_t>(target);
  r.boolean("dry_run", out.dry_run);
  r.boolean("force", out.force);
  r.finish();
  // A list that came out empty must not mean everything.
  if (r.ok() && r.has("document_ids") && out.document_ids.empty())
    r.fail("document_ids",
           "document_ids is empty; name at least one document, or leave it out to evict all KV");
  return r.error();
}

std::optional<JsonError> read_pin(const json::value& body, PinBody& out) {
  JsonReader r(body, "");
  if (!r.ok()) return r.error();
  out.document_ids = r.strings("document_ids", kMaxIds);
  read_tier(r, out.tier);
  r.finish();
  if (r.ok() && out.document_ids.empty())
    r.fail("document_ids", "document_ids is missing or empty; name at least one document");
  return r.error();
}

std::optional<JsonError> read_export(const json::value& body,
                                     std::vector<std::string>& document_ids) {
  JsonReader r(body, "");
  if (!r.ok()) return r.error();
  document_ids = r.strings("document_ids", kMaxIds);
  r.finish();
  return r.error();
}

}  // namespace quire
