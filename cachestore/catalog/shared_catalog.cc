#include "cachestore/catalog/shared_catalog.h"

#include "cachestore/catalog/postgres_catalog.h"
#include "cachestore/format/key.h"

namespace quire {
namespace {

constexpr std::string_view kField = "catalog.url";
constexpr std::string_view kBeginning = "the shared catalog does not answer: ";

}  // namespace

std::uint32_t catalog_shard(std::string_view ns, std::string_view id) {
  std::string name(ns);
  name += '\0';
  name += id;
  return std::to_integer<std::uint32_t>(std::byte{sha256(name).bytes[0]}) % kCatalogShards;
}

Status request_taken_over() {
  return Status(Code::kIo,
                "another replica has this request by now; send it again with the same "
                "Idempotency-Key",
                std::string(kField));
}

Status catalog_away(const std::string& why) {
  // A reason may be the message of such a status.
  std::string message(why.starts_with(kBeginning) ? "" : kBeginning);
  return Status(Code::kIo, message + why, std::string(kField));
}

std::string why_away(const Status& status) {
  const std::string& message = status.message();
  return message.starts_with(kBeginning) ? message.substr(kBeginning.size()) : message;
}

Status job_taken_over() {
  return Status(Code::kCancelled, "another replica has taken over the job", "job");
}

Status change_overtaken() {
  return Status(Code::kCancelled, "a later change has replaced the document", "documents");
}

bool is_change_overtaken(const Status& status) {
  return status.code() == Code::kCancelled && status.field() == "documents";
}

bool is_job_taken_over(const Status& status) {
  return status.code() == Code::kCancelled && status.field() == "job";
}

bool catalog_is_away(const Status& status) {
  return status.code() == Code::kIo && status.field() == kField;
}

Status catalog_status(const CatalogStats& stats) {
  return !stats.shared || stats.up ? Status() : catalog_away(stats.reason);
}

Status check_catalog_url(const std::string& url) {
  return url.empty() ? Status() : check_postgres_url(url);
}

Result<std::unique_ptr<SharedCatalog>> open_shared_catalog(const CatalogOptions& options) {
  if (options.url.empty()) return std::unique_ptr<SharedCatalog>();
  QUIRE_RETURN_IF_ERROR(check_catalog_url(options.url));
  return open_postgres_catalog(options);
}

}  // namespace quire
