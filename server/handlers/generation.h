/// From a checked body to generated text, one path for the native and the OpenAI-compatible
/// endpoints: documents are resolved, the prompt is built, the engine runs each choice; a
/// ReplyWriter says it in the client's dialect.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "server/handlers/retrieve.h"
#include "server/json/query_codec.h"
#include "server/service/call.h"
#include "server/service/services.h"

namespace quire {

/// A request on its way to the engine. Threads: one at a time, until run_choices(); then only
/// `call` and `records` are used.
struct Generation {
  std::shared_ptr<Call> call;
  QueryBody body;
  std::int32_t samples = 1;       ///< choices of each prompt; choice = prompt * samples + sample
  bool touches_documents = true;  ///< counts as a use of the documents, and may wait for them
  /// Documents that are not ready are waited for until then
  std::chrono::steady_clock::time_point ready_by;
  std::chrono::steady_clock::time_point deadline;
  /// Called on a worker thread once `requests` and `records` are complete.
  std::function<void(std::shared_ptr<Generation>)> on_prepared;

  std::vector<ChosenDocument> chosen;  ///< by the service; the same as body.document_ids

  std::vector<QueryRequest> requests;                 ///< one for each choice
  std::vector<std::shared_ptr<QueryRecord>> records;  ///< the same
  QueryRecord& first() const { return *records.front(); }
};

/// Model, ids and times, then documents and prompt; fails the call if something is wrong with them.
/// `generation` needs call, body, samples, ready_by, deadline and on_prepared.
void prepare(std::shared_ptr<Generation> generation);

/// Says in the client's dialect what becomes of the choices. The records are written before each
/// call and not during it.
class ReplyWriter {
 public:
  virtual ~ReplyWriter() = default;
  /// The choice's plan is known. On the engine thread, as text(); choices come in any order among
  /// each other.
  virtual void planned(std::size_t choice) = 0;
  /// A further piece of the answer, never empty, with the log probabilities of the tokens that
  /// begin in it (where asked for). False: nobody listens any more.
  virtual bool text(std::size_t choice, std::string_view text,
                    std::vector<TokenLogprobs> logprobs) = 0;
  /// The end of a choice; nothing more is said of it. On a worker thread, so choices may end at the
  /// same time, and while others still go on. After a failure the others are cancelled.
  virtual void finished(std::size_t choice, const Status& status) = 0;
};

/// Asks the engine for every choice; the requests are spent. `writer` gets their events; a refusal
/// by the engine is a finished() with its status. Choices are cancelled when the client leaves.
void run_choices(Generation& generation, std::shared_ptr<ReplyWriter> writer);

/// What the client is told of a failure of the engine. Logs what a person must look at.
Problem engine_problem(const Status& status);
/// The same; where the queue is full, with the wait the engine expects (one second to a minute) as
/// the time after which to try again.
Problem engine_problem(const Status& status, const Engine& engine);

/// Character ranges of the plan's blocks, where the document is still the one that was asked.
std::vector<BlockChars> block_chars(Services& services, const QueryRecord& record);

}  // namespace quire
