#include "server/handlers/document_stream.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/index.h"
#include "server/handlers/common.h"
#include "server/handlers/handlers.h"
#include "server/handlers/ingest_answer.h"
#include "server/json/document_upload.h"
#include "server/reply/job_reply.h"
#include "server/service/spool_file.h"

namespace quire {
namespace {

constexpr std::size_t kJobBytes = 8 << 20;  // text of one job
constexpr std::chrono::milliseconds kAskAgain{200};

/// Refuses a line that is longer than a body of another type may be.
class LineSink final : public SpoolSink {
 public:
  LineSink(Call& call, std::shared_ptr<SpoolFile> file, std::uint64_t most)
      : SpoolSink(call, std::move(file)), most_(most) {}
  std::optional<HttpResponse> write(std::string_view piece) override {
    for (std::size_t at = 0;;) {
      const auto newline = piece.find('\n', at);
      line_ += std::min(newline, piece.size()) - at;
      if (line_ > most_)
        return refusal(make_problem(
            "payload_too_large", "a line of the body has more than the " + std::to_string(most_) +
                                     " bytes that are taken (server.max_body_bytes)"));
      if (newline == std::string_view::npos) break;
      line_ = 0;
      at = newline + 1;
    }
    return SpoolSink::write(piece);
  }

 private:
  const std::uint64_t most_;
  std::uint64_t line_ = 0;  // bytes since the last line's end
};

NdjsonReader::Source source_of(const Call& call) {
  if (const auto file = std::static_pointer_cast<SpoolFile>(call.body_state)) return file->source();
  return [rest = std::string_view(call.request().body)](
             std::span<char> out) mutable -> Result<std::size_t> {
    const std::size_t n = rest.copy(out.data(), out.size());
    rest.remove_prefix(n);
    return n;
  };
}

/// Makes jobs of the documents. It gives its thread back while the queue is full.
class DocumentStream : public std::enable_shared_from_this<DocumentStream> {
 public:
  DocumentStream(std::shared_ptr<Call> call, BatchOptions options, std::int64_t wait_ms,
                 bool single)
      : call_(std::move(call)),
        options_(std::move(options)),
        wait_ms_(wait_ms),
        single_(single),
        reader_(source_of(*call_)),
        most_documents_(to_size(call_->services.ingest->options().max_documents_per_call)) {}

  void run() {
    const auto fence = call_->fence_changes();
    for (;;) {
      if (part_.empty() && !read_part()) return;
      if (part_.empty())
        return answer_ingest(call_, std::move(jobs_), {wait_ms_, single_, false, {}});
      if (call_->exchange->client_gone()) return fail(make_problem("internal", "the client left"));
      if (!has_room()) return ask_again();
      auto job = call_->services.ingest->submit(call_->ns, std::exchange(part_, {}), options_);
      if (!job.ok()) return fail(ingest_problem(job.status()));
      observe_job(call_->services, call_->ns, job->id);
      num_taken_ += to_size(job->counts.total);
      if (num_taken_ > kMostResults) job->results.clear();
      jobs_.push_back(std::move(*job));
    }
  }

 private:
  /// Reads the documents of one job; none at the body's end. False: the call was failed.
  bool read_part() {
    part_bytes_ = 0;
    while (part_.size() < most_documents_ && part_bytes_ < kJobBytes) {
      std::optional<DocumentInput> document;
      if (const auto e = reader_.next(document)) {
        fail(problem_of(*e));
        return false;
      }
      if (!document) break;
      if (document->text) part_bytes_ += document->text->size();
      for (const std::string& c : document->chunks.value_or(std::vector<std::string>{}))
        part_bytes_ += c.size();
      part_.push_back(std::move(*document));
    }
    return true;
  }

  /// One stream leaves half of the queue to other callers.
  bool has_room() const {
    const IngestService& ingest = *call_->services.ingest;
    const IngestStats now = ingest.stats();
    return now.documents_waiting == 0 || !now.accepting ||
           (to_size(now.documents_waiting) + part_.size() <=
                ingest.options().max_queued_documents / 2 &&
            now.bytes_waiting + part_bytes_ <= ingest.options().max_queued_bytes / 2);
  }

  void ask_again() {
    Services& services = call_->services;
    services.timers->at(TimerQueue::Clock::now() + kAskAgain,
                        [self = shared_from_this(), &services] {
                          if (services.workers->post([self] { self->run(); })) return;
                          if (services.stopping)
                            self->fail(make_problem("draining", "the service is shutting down"));
                          else
                            self->ask_again();
                        });
  }

  void fail(Problem problem) {
    if (!jobs_.empty()) {
      problem.detail += "; the first " + std::to_string(num_taken_) +
                        " documents were taken and are cached by the jobs in job_ids";
      boost::json::array ids;
      for (const JobSnapshot& job : jobs_) ids.emplace_back(job.id);
      problem.extra["job_ids"] = std::move(ids);
    }
    call_->fail(problem);
  }

  const std::shared_ptr<Call> call_;
  const BatchOptions options_;
  const std::int64_t wait_ms_;
  const bool single_;  // the body has one document
  NdjsonReader reader_;
  const std::size_t most_documents_;
  std::vector<DocumentInput> part_;
  std::size_t part_bytes_ = 0;
  std::vector<JobSnapshot> jobs_;
  std::size_t num_taken_ = 0;
};

}  // namespace

std::shared_ptr<BodySink> make_document_sink(Call& call, const HttpRequest& request) {
  if (request.method != "POST" || request.media_type() != kNdjsonType ||
      !call.idempotency_slot.empty())
    return nullptr;
  const auto config = call.services.config();
  auto file = std::make_shared<SpoolFile>(config->disk.path);
  call.body_state = file;
  return std::make_shared<LineSink>(call, std::move(file),
                                    static_cast<std::uint64_t>(config->server.max_body_bytes));
}

void post_document_stream(std::shared_ptr<Call> call) {
  BatchOptions options;
  if (!read_batch_parameters(*call, options, nullptr)) return;
  const auto wait_ms = wait_preference(*call);
  if (!wait_ms) return;
  NdjsonReader check(source_of(*call));
  for (std::optional<DocumentInput> document;;) {
    if (failed(*call, check.next(document))) return;
    if (!document) break;
  }
  if (check.num_documents() == 0)
    return call->fail(make_problem(
        "invalid_value", "the body has no document; send one JSON object a line", "documents"));
  const bool single = check.num_documents() == 1;
  std::make_shared<DocumentStream>(std::move(call), std::move(options), *wait_ms, single)->run();
}

}  // namespace quire
