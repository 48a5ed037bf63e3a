/// Turns a checked body into generated text, for the native and the OpenAI-compatible endpoints. It
/// resolves documents, builds the prompt and runs each choice on the engine. A ReplyWriter writes
/// the result in the client's format.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "server/handlers/retrieve.h"
#include "server/json/query_request.h"
#include "server/reply/explain_reply.h"
#include "server/reply/query_record.h"
#include "server/service/call.h"
#include "server/service/services.h"

namespace quire {

/// The time of an answer in protocols without a field for it, whose clients give up after ten
/// minutes.
constexpr std::chrono::minutes kAnswerTime{10};

/// Generation is one request on its way to the engine. Threads: one at a time until run_choices(),
/// which leaves only `call` and `records` in use.
struct Generation {
  std::shared_ptr<Call> call;
  QueryBody body;
  std::int32_t samples = 1;       ///< choices of each prompt; choice = prompt * samples + sample
  bool touches_documents = true;  ///< it counts as a use of the documents and may wait for them
  /// The time until which it waits for documents that are not ready.
  std::chrono::steady_clock::time_point ready_by;
  std::chrono::steady_clock::time_point deadline;
  /// Called on a worker thread once `requests` and `records` are complete.
  std::function<void(std::shared_ptr<Generation>)> on_prepared;

  /// What the service chose; its documents are body.document_ids.
  FoundTexts chosen;

  std::vector<QueryRequest> requests;                 ///< one for each choice
  std::vector<std::shared_ptr<QueryRecord>> records;  ///< one for each choice
  QueryRecord& first() const { return *records.front(); }
};

/// Sets model, ids and times, then resolves documents and builds the prompt. It fails the call on
/// an error. `generation` needs call, body, samples, ready_by, deadline and on_prepared.
void prepare(std::shared_ptr<Generation> generation);

/// A piece of a call of a tool.
struct ToolDelta {
  std::size_t index = 0;           ///< which call of the answer
  const ToolCall* call = nullptr;  ///< as far as it is known; valid during the call
  bool begins = false;             ///< its id and name are new, and it has no arguments yet
  std::string_view arguments;      ///< what is new of its arguments
};

/// ReplyWriter writes the choices' events in the client's format. The records are updated before
/// each call and not during it.
class ReplyWriter {
 public:
  virtual ~ReplyWriter() = default;
  /// Reports that the choice's plan is known. It runs on the engine thread, as text() does; choices
  /// come in any order.
  virtual void planned(std::size_t choice) = 0;
  /// Writes the next piece of the answer. `logprobs` holds the tokens that begin in it, if
  /// requested; the piece is empty only with the last tokens, where these have no text. False: the
  /// client is gone.
  virtual bool text(std::size_t choice, std::string_view text,
                    std::vector<TokenLogprobs> logprobs) = 0;
  /// Writes the next piece of a call; otherwise as text().
  virtual bool tool_call(std::size_t choice, const ToolDelta& delta,
                         std::vector<TokenLogprobs> logprobs) = 0;
  /// Reports the end of a choice, its last event. It runs on a worker thread, possibly concurrently
  /// for several choices and while others still generate. After a failure the other choices are
  /// cancelled.
  virtual void finished(std::size_t choice, const Status& status) = 0;
};

/// Submits every choice to the engine and consumes the requests; `writer` gets their events. If the
/// engine refuses one, finished() gets the status. Choices are cancelled when the client leaves.
void run_choices(Generation& generation, std::shared_ptr<ReplyWriter> writer);

/// Returns the client's problem for a failure of the engine, and logs failures that an operator
/// must examine. `record` is that of the query; it says whether there are documents.
Problem engine_problem(const Status& status, const QueryRecord& record);
/// Returns the problem as above. If the queue is full, its retry time is the wait that the engine
/// expects, from one second to a minute.
Problem engine_problem(const Status& status, const QueryRecord& record, const Engine& engine);
/// Returns the same for a request that had kAnswerTime, which none of its fields changes.
Problem answer_problem(const Status& status, const QueryRecord& record, const Engine& engine);

/// Returns the character ranges of the plan's blocks, for documents that have not changed since the
/// query.
std::vector<BlockChars> block_chars(Services& services, const QueryRecord& record);

}  // namespace quire
