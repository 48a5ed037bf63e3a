#include "server/commands/files/ingest_run.h"

#include <unistd.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cstdio>
#include <set>

#include "base/index.h"
#include "base/json_parse.h"
#include "ingest/document/document_id.h"
#include "server/commands/files/estimate.h"
#include "server/hub/file_fetch.h"
#include "server/hub/transfer.h"
#include "server/json/text.h"

namespace quire {
namespace json = boost::json;
namespace {

/// Limits of one call: half of what the service takes, so that escapes in JSON fit.
constexpr std::size_t kMaxDocuments = 128;
constexpr std::uint64_t kMaxBytes = 8u << 20;
/// Changes when readers make another text of the same bytes, so that files are read again.
constexpr const char* kReadersVersion = "3";

std::string text_of(const json::object& o, const char* key) {
  const auto* v = o.if_contains(key);
  return v && v->is_string() ? std::string(v->as_string()) : std::string();
}

std::int64_t number_of(const json::object& o, const char* key) {
  const auto* v = o.if_contains(key);
  return v && v->is_number() ? v->to_number<std::int64_t>() : 0;
}

std::string message_of(const json::object& result) {
  const auto* e = result.if_contains("error");
  return e && e->is_object() ? text_of(e->as_object(), "message") : std::string();
}

/// Returns whether a name says that there is a text: of such a file without one, which is damaged
/// or protected, people want to know.
bool promises_text(std::string_view name) {
  static constexpr std::string_view kEndings[] = {".pdf", ".docx", ".xlsx", ".pptx",
                                                  ".odt", ".ods",  ".odp",  ".epub"};
  return std::ranges::find(kEndings, ending_of(name)) != std::end(kEndings);
}

double ratio_of(const json::object& job, double& speed) {
  const auto* progress = job.if_contains("progress");
  if (!progress || !progress->is_object()) return 0;
  const auto& p = progress->as_object();
  if (const auto* s = p.if_contains("tokens_per_second"); s && s->is_number())
    speed = s->to_number<double>();
  const auto* r = p.if_contains("ratio");
  return r && r->is_number() ? r->to_number<double>() : 0;
}

}  // namespace

void IngestRun::say(Fate fate, const std::string& name, const std::string& detail) {
  struct Row {
    const char* word;
    std::int64_t IngestCounts::*count;
  };
  static constexpr Row kRows[] = {
      {"created", &IngestCounts::created},     {"updated", &IngestCounts::updated},
      {"unchanged", &IngestCounts::unchanged}, {"deleted", &IngestCounts::deleted},
      {"skipped", &IngestCounts::skipped},     {"failed", &IngestCounts::failed},
      {"cancelled", &IngestCounts::cancelled}};
  const Row& row = kRows[at(fate)];
  ++(counts_.*row.count);
  clear_bar();
  const bool bad = fate == Fate::kFailed || fate == Fate::kCancelled;
  if (bad)
    std::fprintf(stderr, "%-9s %s: %s\n", row.word, name.c_str(), detail.c_str());
  else if (!flags_.quiet)
    std::printf("%-9s %s%s%s\n", row.word, name.c_str(),
                detail.empty()           ? ""
                : fate == Fate::kSkipped ? ": "
                                         : "  ",
                detail.c_str());
}

void IngestRun::cancel(const std::string& unit, const std::string& name, const std::string& why) {
  if (!interrupt_.requested()) return say(Fate::kCancelled, name, why);  // somebody else did
  Cancelled& c = cancelled_[{unit, why}];
  if (c.number++ == 0) c.name = name;
}

/// Tells what was cancelled also where a pass ends in an error.
struct IngestRun::TellsCancelled {
  IngestRun& run;
  ~TellsCancelled() { run.tell_cancelled(); }
};

void IngestRun::tell_cancelled() {
  for (const auto& [key, c] : std::exchange(cancelled_, {})) {
    const auto& [unit, why] = key;
    say(Fate::kCancelled, c.number == 1 ? c.name : counted(c.number, unit), why);
    counts_.cancelled += c.number - 1;
  }
}

void IngestRun::summarize(const IngestCounts& c) const {
  if (flags_.quiet) return;
  const std::pair<const char*, std::int64_t> rows[] = {
      {"created", c.created},    {"updated", c.updated}, {"unchanged", c.unchanged},
      {"deleted", c.deleted},    {"skipped", c.skipped}, {"failed", c.failed},
      {"cancelled", c.cancelled}};
  std::string line;
  for (const auto& [word, count] : rows) {
    if (count == 0) continue;
    line += (line.empty() ? "" : ", ") + grouped(count) + " " + word;
  }
  std::fflush(stdout);
  std::fprintf(stderr, "%s%s\n", flags_.dry_run ? "would be: " : "",
               line.empty() ? "nothing to do" : line.c_str());
}

void IngestRun::clear_bar() {
  if (std::exchange(bar_, false)) std::fprintf(stderr, "\r\033[K");
}

void IngestRun::draw(double batch_ratio, double speed) {
  if (flags_.quiet || !::isatty(2) || bytes_total_ == 0) return;
  constexpr int kWidth = 24;
  const double done = static_cast<double>(bytes_done_) +
                      static_cast<double>(bytes_sending_) * std::clamp(batch_ratio, 0.0, 1.0);
  const double ratio = std::clamp(done / static_cast<double>(bytes_total_), 0.0, 1.0);
  std::string bar(to_size(static_cast<int>(ratio * kWidth)), '#');
  bar.resize(kWidth, '.');
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - started_;
  const std::string left = ratio > 0.02 && spent.count() > 1
                               ? duration_text(spent.count() * (1 - ratio) / ratio) + " left"
                               : "";
  std::fprintf(stderr, "\r[%s] %3.0f%%  %.0f tokens/s  %s\033[K", bar.c_str(), ratio * 100, speed,
               left.c_str());
  std::fflush(stderr);
  bar_ = true;
}

std::string IngestRun::settings_text() const {
  return std::string(kReadersVersion) + "|" + flags_.encoding + "|" + flags_.chunking + "|" +
         std::to_string(flags_.max_tokens) + "|" + std::to_string(flags_.overlap) + "|" +
         std::to_string(flags_.context_tokens) + "|" + flags_.kv +
         (flags_.related_tokens > 0 ? "|related " + std::to_string(flags_.related_tokens) : "") +
         (!flags_.lead_in   ? ""
          : *flags_.lead_in ? "|lead-in"
                            : "|no lead-in");
}

Result<FileContent> IngestRun::content_of(const FileWalk& walk, std::size_t index,
                                          const std::string& hash) {
  if (auto ahead = read_ahead_.extract(index); !ahead.empty()) return std::move(ahead.mapped());
  return read_documents_of(reader_, walk.files[index], flags_.encoding, hash);
}

void IngestRun::print_estimate(const FileWalk& walk, const std::vector<std::string>& hashes) {
  if (flags_.quiet) return;
  // A few files of each kind whose sizes say little are read now rather than later.
  constexpr std::size_t kOfEachKind = 3;
  constexpr std::uint64_t kMostText = 64u << 20;  // held in memory until its turn
  constexpr std::chrono::seconds kMostTime(3);
  IngestEstimate e;
  e.files = count_of(walk.files);
  TextDensities densities;
  std::map<std::string, std::vector<std::size_t>> kinds;
  for (std::size_t i = 0; i < walk.files.size(); ++i)
    if (density_varies(walk.files[i].name)) kinds[ending_of(walk.files[i].name)].push_back(i);
  std::uint64_t held = 0;
  const auto begun = std::chrono::steady_clock::now();
  for (std::size_t n = 0; n < kOfEachKind; ++n) {
    for (const auto& [ending, files] : kinds) {
      if (n >= files.size() || held > kMostText || interrupt_.requested() ||
          std::chrono::steady_clock::now() - begun > kMostTime)
        continue;
      // The first, the last and the one in the middle: files of one folder often look alike.
      const std::size_t at = n == 0 ? 0 : n == 1 ? files.size() - 1 : files.size() / 2;
      const FoundFile& file = walk.files[files[at]];
      if (read_ahead_.contains(files[at])) continue;
      auto content = read_documents_of(reader_, file, flags_.encoding, hashes[files[at]]);
      std::uint64_t bytes = 0;
      if (content.ok())
        for (const FileDocument& d : content->documents)
          bytes += d.body.at("text").as_string().size();
      held += bytes;
      ++e.read;
      densities.add(file.name, file.bytes, bytes);
      read_ahead_.emplace(files[at], std::move(content));
    }
  }
  for (const FoundFile& file : walk.files) e.tokens += densities.tokens(file.name, file.bytes);
  ClientRequest request;
  request.target = "/v1/info";
  // Of other documents no KV is computed now.
  const bool computes = flags_.kv == "eager";
  if (const auto info = client_json(flags_.client, std::move(request)); computes && info.ok()) {
    const auto& o = info->as_object();
    if (const auto* model = o.if_contains("model"); model && model->is_object())
      if (const auto* meta = model->as_object().if_contains("meta"); meta && meta->is_object())
        e.kv_bytes = e.tokens * number_of(meta->as_object(), "kv_bytes_per_token");
    if (const auto* measured = o.if_contains("measured"); measured && measured->is_object()) {
      const auto* speed = measured->as_object().if_contains("prefill_tokens_per_second");
      if (speed && speed->is_number() && speed->to_number<double>() > 0)
        e.seconds = static_cast<double>(e.tokens) / speed->to_number<double>();
    }
  }
  std::fprintf(stderr, "%s\n", to_text(e).c_str());
}

Status IngestRun::look_up(const FileWalk& walk) {
  stored_.clear();
  ready_.clear();
  for (const auto& root : walk.roots) {
    auto found = stored_under(flags_.client, root);
    if (!found.ok()) return found.status();
    for (auto& one : *found) {
      remember(std::move(one));
    }
  }
  return {};
}

void IngestRun::remember(StoredFile stored) {
  // A mailbox has several documents, of which each has the hash of the whole.
  if (stored.ready) {
    Ready& ready = ready_[{stored.root, stored.source, stored.hash}];
    ready.ids.insert(stored.id);
    ready.documents = stored.documents;
  }
  std::string id = stored.id;
  stored_.insert_or_assign(std::move(id), std::move(stored));
}

bool IngestRun::is_stored(const FoundFile& file, const std::string& hash) const {
  const auto ready = ready_.find({file.root.string(), file.name, hash});
  return ready != ready_.end() && ready->second.ids.size() >= ready->second.documents;
}

Result<std::string> IngestRun::conflict(const FoundFile& file, const std::string& id) {
  auto known = stored_.find(id);
  if (known == stored_.end()) {
    auto found = stored_document(flags_.client, id);
    if (!found.ok()) return found.status();
    if (!*found) return std::string();
    known = stored_.emplace(id, **found).first;
  }
  const StoredFile& stored = known->second;
  const bool ours = stored.root.empty() ? stored.source.empty() || stored.source == file.name ||
                                              stored.source == file.path.string()
                                        : stored.root == file.root.string();
  if (ours || flags_.replace) return std::string();
  return "the id " + id + " is that of another file, " + stored.root + "/" + stored.source +
         "; ingest the folder above both, or add --replace";
}

void IngestRun::refuse(const FoundFile& file, const Status& why) {
  bytes_done_ += file.bytes;
  std::string message = why.message();
  const std::string path = file.path.string();
  if (message.starts_with(path + ": ") || message.starts_with(path + ", line "))
    message.erase(0, path.size() + 2);
  // What no reader is meant for is no failure of a folder; of a file that was named it is.
  const bool no_text = (why.code() == Code::kUnimplemented && !promises_text(file.name)) ||
                       why.code() == Code::kNotFound || file.bytes == 0;
  say(no_text && !file.named ? Fate::kSkipped : Fate::kFailed, path, message);
}

Status IngestRun::take(const FoundFile& file, Result<FileContent> content) {
  if (!content.ok()) {
    refuse(file, content.status());
    return {};
  }
  clear_bar();
  for (const auto& warning : content->warnings)
    std::fprintf(stderr, "warning   %s: %s\n", file.path.c_str(), warning.c_str());
  auto& ids = read_ids_[{file.root.string(), file.name}];
  for (FileDocument& document : content->documents) {
    if (const auto* id = document.body.if_contains("id"); id && id->is_string()) {
      ids.emplace_back(id->as_string());
      kept_.insert(ids.back());
      std::string why;
      if (!document.own_id) {
        QUIRE_ASSIGN_OR_RETURN(why, conflict(file, ids.back()));
      }
      if (!why.empty()) {
        say(Fate::kFailed, file.path.string(), why);
        continue;
      }
    }
    if (flags_.dry_run) {
      // The service names a document without an id by its text.
      const auto* id = document.body.if_contains("id");
      const bool named = id && id->is_string();
      const bool known = named && stored_.contains(ids.back());
      if (!named) unsure_.insert({file.root.string(), file.name});
      say(known ? Fate::kUpdated : Fate::kCreated, named ? ids.back() : file.path.string(), "");
      continue;
    }
    const bool markdown = flags_.chunking == "markdown" ||
                          (flags_.chunking == "auto" && flags_.overlap == 0 && document.markdown);
    const auto* text = document.body.if_contains("text");
    pending_bytes_[markdown] += 512 + (text && text->is_string() ? text->as_string().size() : 0);
    pending_[markdown].push_back({std::move(document), file});
    QUIRE_RETURN_IF_ERROR(send_pending(false));
  }
  return {};
}

Status IngestRun::send_pending(bool all) {
  for (const bool markdown : {false, true}) {
    auto& pending = pending_[markdown];
    if (pending.empty()) continue;
    if (!all && pending.size() < kMaxDocuments && pending_bytes_[markdown] < kMaxBytes) continue;
    pending_bytes_[markdown] = 0;
    QUIRE_RETURN_IF_ERROR(send(std::exchange(pending, {}), markdown));
  }
  return {};
}

Status IngestRun::send(std::vector<Pending> batch, bool markdown) {
  const auto name_of = [&](const Pending& p) {
    const auto* id = p.document.body.if_contains("id");
    return id && id->is_string() ? std::string(id->as_string()) : p.file.path.string();
  };
  const auto is_unsure = [&](const Pending& p) {
    if (!p.document.body.contains("id")) unsure_.insert({p.file.root.string(), p.file.name});
  };
  if (interrupt_.requested()) {
    for (const Pending& p : batch) cancel("document", name_of(p), "not sent");
    return {};
  }
  json::array documents;
  std::map<std::string, std::uint64_t> files;
  for (const Pending& p : batch) {
    documents.push_back(p.document.body);
    files[p.file.path.string()] = p.file.bytes;
  }
  bytes_sending_ = 0;
  for (const auto& [path, bytes] : files) bytes_sending_ += bytes;
  json::object chunking;
  chunking["strategy"] = markdown ? "markdown" : "tokens";
  chunking["max_tokens"] = flags_.max_tokens;
  if (!markdown) chunking["overlap_tokens"] = flags_.overlap;
  chunking["context_tokens"] = flags_.context_tokens;
  if (flags_.related_tokens > 0) chunking["related_tokens"] = flags_.related_tokens;
  if (flags_.lead_in) chunking["lead_in"] = *flags_.lead_in;
  json::object body;
  body["documents"] = std::move(documents);
  body["chunking"] = std::move(chunking);
  body["pinned"] = flags_.pinned;
  body["kv"] = flags_.kv;
  ClientRequest request;
  request.method = "POST";
  request.target = "/v1/documents";
  request.content_type = "application/json";
  request.body = to_text(body);
  const auto reply = client_json(flags_.client, std::move(request));
  if (!reply.ok()) {
    // Nobody answers, or the service takes no document now, so that no file can be sent.
    if (reply.code() != Code::kFailedPrecondition) return reply.status();
    if (batch.size() > 1) {  // one refused document must not take the others with it
      for (Pending& p : batch) {
        std::vector<Pending> one;
        one.push_back(std::move(p));
        QUIRE_RETURN_IF_ERROR(send(std::move(one), markdown));
      }
      return {};
    }
    bytes_done_ += std::exchange(bytes_sending_, 0);
    say(Fate::kFailed, name_of(batch[0]), reply.status().message());
    is_unsure(batch[0]);
    return {};
  }
  const std::string job = text_of(reply->as_object(), "job_id");
  interrupt_.set_action([client = flags_.client, job] {
    std::fprintf(stderr, "\ncancelling; press Ctrl-C again to quit at once\n");
    ClientRequest cancel;
    cancel.method = "POST";
    cancel.target = "/v1/jobs/" + job + "/cancel";
    (void)client_call(client, std::move(cancel));  // the job says itself how it ended
  });
  Result<json::value> last = Status::io("the server ended the job's events early");
  SseReader reader;
  ClientRequest events;
  events.target = "/v1/jobs/" + job + "/events";
  const auto followed = client_call(flags_.client, std::move(events), [&](std::string_view piece) {
    return reader.feed(piece, [&](const std::string& name, const std::string& data) {
      auto value = parse_json(data);
      if (!value.ok() || !value->is_object()) return true;
      if (name == "error") {
        last = Status::io(text_of(value->as_object(), "detail") +
                          "; the same command goes on from there");
        return false;
      }
      double speed = 0;
      const double ratio = ratio_of(value->as_object(), speed);
      draw(ratio, speed);
      if (name != "done") return true;
      last = std::move(*value);
      return false;
    });
  });
  interrupt_.set_action({});
  if (!last.ok() && followed.ok()) return last.status();
  if (!followed.ok())
    return Status(followed.code(), followed.status().message() +
                                       "; the service may still be caching what it was sent, and "
                                       "the same command goes on from there");
  bytes_done_ += std::exchange(bytes_sending_, 0);
  const auto* results = last->as_object().if_contains("results");
  if (!results || !results->is_array()) return Status::io("the job ended without results");
  for (const auto& item : results->as_array()) {
    const auto& o = item.as_object();
    const auto index = static_cast<std::size_t>(number_of(o, "index"));
    if (index >= batch.size()) continue;
    const std::string result = text_of(o, "result");
    std::string name = text_of(o, "id");
    if (name.empty()) {
      name = name_of(batch[index]);
      is_unsure(batch[index]);
    } else {
      kept_.insert(name);
    }
    const std::string size = counted(number_of(o, "tokens"), "token") + ", " +
                             counted(number_of(o, "blocks"), "block");
    if (result == "created")
      say(Fate::kCreated, name, size);
    else if (result == "updated")
      say(Fate::kUpdated, name, size);
    else if (result == "cancelled")
      cancel("document", name, "the job was cancelled");
    else if (result == "failed" || result.empty())
      say(Fate::kFailed, batch[index].file.path.string(),
          result.empty() ? "the job ended before it" : message_of(o));
    else
      say(Fate::kUnchanged, name, "");
  }
  return {};
}

Status IngestRun::delete_vanished(const FileWalk& walk) {
  // A pass that was cut short has not seen everything.
  if (!flags_.sync || interrupt_.requested()) return {};
  for (const auto& item : stored_) {
    const std::string& id = item.first;
    const StoredFile& stored = item.second;
    const bool below = std::any_of(walk.roots.begin(), walk.roots.end(),
                                   [&](const auto& root) { return root.string() == stored.root; });
    if (!below || stored.source.empty()) continue;
    // Another file may have it by now, and what was just sent is never to be deleted.
    if (kept_.contains(id) || unsure_.contains({stored.root, stored.source})) continue;
    if (std::ranges::any_of(walk.just_gone, [&](const FoundFile& file) {
          return file.root.string() == stored.root && file.name == stored.source;
        }))
      continue;
    std::error_code error;
    const bool there = std::filesystem::exists(std::filesystem::path(stored.root) / stored.source,
                                               error);
    if (error) continue;
    const auto read = read_ids_.find({stored.root, stored.source});
    const bool in_file = read == read_ids_.end() ||
                         std::find(read->second.begin(), read->second.end(), id) !=
                             read->second.end();
    if (there && in_file) continue;
    if (flags_.dry_run) {
      say(Fate::kDeleted, id, "");
      continue;
    }
    ClientRequest request;
    request.method = "DELETE";
    request.target = "/v1/documents/" + percent_encode(id);
    const auto reply = client_call(flags_.client, std::move(request));
    if (reply.ok())
      say(Fate::kDeleted, id, "");
    else if (reply.code() != Code::kNotFound)
      say(Fate::kFailed, id, reply.status().message());
  }
  return {};
}

/// What a pass left that was cut short by an error is read again.
void IngestRun::begin_pass() {
  counts_ = {};
  read_ids_.clear();
  kept_.clear();
  unsure_.clear();
  cancelled_.clear();
  for (auto& pending : pending_) pending.clear();
  for (auto& bytes : pending_bytes_) bytes = 0;
}

Result<IngestCounts> IngestRun::pass(const FileWalk& walk) {
  begin_pass();
  const TellsCancelled always{*this};
  started_ = std::chrono::steady_clock::now();
  bytes_done_ = bytes_sending_ = bytes_total_ = 0;
  QUIRE_RETURN_IF_ERROR(look_up(walk));
  for (const auto& [path, reason, unreadable] : walk.skipped)
    say(unreadable ? Fate::kFailed : Fate::kSkipped, path, reason);

  // Hashes first: what is stored already needs no reader, and counts for no estimate.
  FileWalk rest;
  std::vector<std::string> hashes;
  for (const FoundFile& file : walk.files) {
    if (interrupt_.requested()) break;
    if (const Status size = check_size(file); !size.ok()) {
      refuse(file, size);
      continue;
    }
    const auto hash = hash_of_file(file, settings_text());
    if (!hash.ok()) {
      refuse(file, hash.status());
      continue;
    }
    if (file.named) {
      const std::string id = document_id_of_path(file.name);
      auto found = stored_document(flags_.client, id);
      if (!found.ok()) return found.status();
      if (*found) remember(std::move(**found));
    }
    if (is_stored(file, *hash)) {
      say(Fate::kUnchanged, file.path.string(), "");
      continue;
    }
    rest.files.push_back(file);
    hashes.push_back(*hash);
    bytes_total_ += file.bytes;
  }
  bytes_done_ = 0;
  read_ahead_.clear();
  if (!rest.files.empty()) print_estimate(rest, hashes);
  for (std::size_t i = 0; i < rest.files.size(); ++i) {
    const FoundFile& file = rest.files[i];
    if (interrupt_.requested()) {
      cancel("file", file.path.string(), "not read");
      continue;
    }
    draw(0, 0);
    QUIRE_RETURN_IF_ERROR(take(file, content_of(rest, i, hashes[i])));
  }
  QUIRE_RETURN_IF_ERROR(send_pending(true));
  QUIRE_RETURN_IF_ERROR(delete_vanished(walk));
  tell_cancelled();
  clear_bar();
  return counts_;
}

Result<IngestCounts> IngestRun::pass_url(const std::string& url) {
  begin_pass();
  const TellsCancelled always{*this};
  // The person's own program asks, so no host is forbidden to it.
  hub::FetchRules rules;
  rules.private_addresses = true;
  rules.hosts = {"*"};
  if (const auto parts = hub::split_url(url); parts.ok()) rules.hosts.push_back("*:" + parts->port);
  const auto fetched = hub::fetch_file(url, rules);
  if (!fetched.ok()) {
    refuse({url, {}, url, 0, 0, true}, fetched.status());
    return counts_;
  }
  const FoundFile file{fetched->name, {}, fetched->path, fetched->bytes.size(), 0, true};
  QUIRE_RETURN_IF_ERROR(
      take(file, read_documents_of(reader_, fetched->bytes, file, flags_.encoding)));
  QUIRE_RETURN_IF_ERROR(send_pending(true));
  tell_cancelled();
  clear_bar();
  return counts_;
}

Result<IngestCounts> IngestRun::pass_stdin(std::string_view bytes) {
  begin_pass();
  const TellsCancelled always{*this};
  const FoundFile file{flags_.stdin_name, {}, flags_.stdin_name, bytes.size(), 0, true};
  QUIRE_RETURN_IF_ERROR(take(file, read_documents_of(reader_, bytes, file, flags_.encoding)));
  QUIRE_RETURN_IF_ERROR(send_pending(true));
  tell_cancelled();
  clear_bar();
  return counts_;
}

}  // namespace quire
