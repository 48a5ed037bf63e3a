// Exports documents and their KV and imports them, as a stream. See cachestore/pack/pack.h.
#include "base/index.h"
#include "base/log.h"
#include "cachestore/pack/pack_transfer.h"
#include "engine/engine.h"
#include "ingest/names.h"
#include "server/handlers/common.h"
#include "server/handlers/handlers.h"
#include "server/json/admin_codec.h"
#include "server/reply/admin_reply.h"
#include "server/service/spool_file.h"
#include "server/support/version.h"

namespace quire {
namespace {

constexpr std::string_view kPackType = "application/vnd.quire.pack";
constexpr std::size_t kPieceBytes = 1u << 20;
constexpr std::chrono::milliseconds kSlowestReader{60'000};

Problem pack_problem(const Status& status) {
  if (status.code() == Code::kCorruption || status.code() == Code::kFailedPrecondition ||
      status.code() == Code::kInvalidArgument)
    return make_problem("invalid_value", status.message(), "body");
  return ingest_problem(status);
}

/// Sends bytes no faster than the client reads them.
class PieceStream {
 public:
  explicit PieceStream(Call& call) : call_(call) {}
  bool write(std::string_view bytes) {
    while (!bytes.empty()) {
      const std::size_t n = std::min(bytes.size(), kPieceBytes - waiting_.size());
      waiting_.append(bytes.substr(0, n));
      bytes.remove_prefix(n);
      if (waiting_.size() == kPieceBytes && !flush()) return false;
    }
    return !call_.services.stopping;
  }
  bool flush() {
    if (waiting_.empty()) return true;
    if (!std::exchange(begun_, true)) begin();
    return call_.exchange->wait_for_room(waiting_.size(), kSlowestReader) &&
           call_.exchange->write(std::exchange(waiting_, {}));
  }
  bool begun() const { return begun_; }

 private:
  void begin() {
    HttpResponse r;
    r.content_type = std::string(kPackType);
    r.headers.set("Content-Disposition", "attachment; filename=\"" + call_.ns + ".quirepack\"");
    call_.add_standard_headers(r.headers);
    call_.exchange->start_stream(std::move(r));
  }
  Call& call_;
  std::string waiting_;
  bool begun_ = false;
};

}  // namespace

std::shared_ptr<BodySink> make_pack_sink(Call& call) {
  auto file = std::make_shared<SpoolFile>(call.services.config()->disk.path);
  call.body_state = file;
  if (!call.idempotency_slot.empty()) call.body_digest = std::make_unique<Sha256>();
  return std::make_shared<SpoolSink>(call, std::move(file));
}

namespace handlers {

void cache_export(std::shared_ptr<Call> call) {
  std::vector<std::string> ids;
  if (!call->request().body.empty()) {
    const auto body = body_json(*call);
    if (!body) return;
    if (failed(*call, read_export(*body, ids))) return;
  }
  AdminStore& store = *call->services.store;
  if (ids.empty()) {
    auto all = ready_documents(store, call->ns);
    if (!all.ok()) return call->fail(ingest_problem(all.status()));
    ids = std::move(*all);
  }
  const PackHeader header{unix_ms_now(), call->services.engine->info().fingerprint,
                          "quire " + std::string(version())};
  PieceStream out(*call);
  const Status s = export_documents(store, call->ns, ids, header,
                                    [&](std::string_view bytes) { return out.write(bytes); });
  if (s.ok() && out.flush()) return call->exchange->finish();
  if (out.begun()) {
    log_warning(
        "an export was not finished",
        {{"request_id", call->request_id}, {"reason", s.ok() ? "the client left" : s.to_string()}});
    return call->exchange->abort();
  }
  if (s.code() == Code::kNotFound) return fail_document(*call, s, s.field());
  call->fail(s.ok() ? make_problem("internal", "the export could not begin") : ingest_problem(s));
}

void cache_import(std::shared_ptr<Call> call) {
  if (!check_parameters(*call, {"mode"})) return;
  if (const auto* mode = call->request().param("mode"); mode && *mode != "merge")
    return call->fail(make_problem(
        "invalid_value",
        "mode is '" + mode->substr(0, 64) +
            "'; use merge: documents of the pack are added, and replace those of the same id",
        "mode"));
  if (const std::string type = call->request().media_type();
      type != kPackType && type != "application/octet-stream")
    return call->fail(make_problem(
        "unsupported_media_type",
        "Content-Type is '" + type.substr(0, 128) + "'; send a pack as " + std::string(kPackType),
        "Content-Type"));
  const auto file = std::static_pointer_cast<SpoolFile>(call->body_state);
  PackReader first(file->source());
  if (const auto whole = check_pack(first); !whole.ok())
    return call->fail(pack_problem(whole.status()));
  const Engine& engine = *call->services.engine;
  ImportOptions options;
  options.ns = call->ns;
  options.tenant = call->services.ingest->tenant(call->ns);
  options.fingerprint = engine.document_fingerprint(call->ns);
  options.key_of = [&](std::span<const std::int32_t> ids, const Digest& salt, LeftContext left) {
    return engine.names().context_key(ids, options.tenant, to_bytes(salt), left);
  };
  options.check_id = check_document_id;
  Admission admission;  // of one document, until the store counts it
  options.admit = [&](const DocumentManifest& document, std::uint64_t text_bytes) -> Status {
    admission = Admission();
    QUIRE_ASSIGN_OR_RETURN(admission, call->services.ingest->admit(document, text_bytes));
    return {};
  };
  options.before_commit = [&](std::string_view id) {
    return call->services.ingest->documents().settle(call->ns, id);
  };
  PackReader reader(file->source());
  const auto report = import_pack(*call->services.store, reader, options);
  // The pack is whole, so what is corrupt now is the store.
  if (!report.ok()) return call->fail(ingest_problem(report.status()));
  call->reply_json(200, import_reply().json(*report));
}

}  // namespace handlers
}  // namespace quire
