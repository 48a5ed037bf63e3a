/// Helpers shared by several handlers.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json_reader.h"
#include "cachestore/store_admin.h"
#include "engine/chat/text_bound.h"
#include "ingest/ingest_service.h"
#include "server/json/embedding_codec.h"
#include "server/json/query_request.h"
#include "server/reply/admin_reply.h"
#include "server/service/call.h"
#include "server/service/services.h"
#include "server/support/problem.h"

namespace quire {

/// Fails the call with the problem of a document operation.
void fail_document(Call& call, const Status& status, const std::string& id);
void fail_job(Call& call, const Status& status, const std::string& id);
/// Loads the KV of a document into memory, until the service stops. KV that cannot be read is a
/// miss later, as usual.
void load_into_memory(const Services& services, const DocumentManifest& document);
/// Returns the problem of an IngestService error that does not concern one id.
Problem ingest_problem(const Status& status);
/// Returns the body of GET /v1/admin/cache/stats and of the `stats` event. `namespaces` are shown
/// if given.
boost::json::object cache_stats_json(
    Services& services, std::optional<std::vector<NamespaceUse>> namespaces = std::nullopt);
/// Returns the problem of a prompt or text that does not fit the model's window; none: the error is
/// another one. `subject` is what has too many tokens, `advice` what to do.
std::optional<Problem> window_problem(const Status& status, std::string_view subject,
                                      std::string_view advice);
/// Returns the problem of texts that are too long to tokenize them all. `subject` is what is too
/// long, as the client knows it; `advice` what to do.
Problem too_long_problem(const TextExcess& excess, std::string_view subject,
                         std::string_view advice, std::string param);
/// Returns the model that a body names; empty: none, or something that is no name.
std::string named_model(const boost::json::value& body);
/// Chooses the model of this name before the rest of the body is read, as far as there is one;
/// choose_model() tells the client if there is none.
void peek_model(Call& call, const std::string& name);
/// Chooses the model of this name; empty: the service's own. If there is none, fails the call and
/// returns false.
bool choose_model(Call& call, const std::string& name);
/// Returns what applies to queries of the chosen model that name nothing themselves.
QueryDefaults query_defaults(Call& call);
/// Fails the call and returns true if there is an error.
bool failed(Call& call, const std::optional<JsonError>& error);

/// Says why long work is to end early; none: it goes on.
using WhyStop = std::function<std::optional<Problem>()>;
/// Returns what says so of a call whose client has left, or that the service's end overtakes.
WhyStop when_left(std::shared_ptr<Call> call);
/// Runs `work` of the call on the encoding threads, as other calls need the workers. Fails the call
/// if too many wait for these threads.
void post_encoding(std::shared_ptr<Call> call, std::function<void()> work);

/// Calls `then` on a worker once the service drains, for a reply that waits for a job: the stop
/// would wait for the reply, and the job goes on at the next start. A job that is nearly done has
/// one to two seconds to end. Nothing is called after `over` was true, which is asked every second.
/// Neither may keep alive what waits.
void once_draining(Services& services, std::function<bool()> over, std::function<void()> then);

/// Fails the call and returns false if `after` of a list of documents can be no document's id. The
/// id of one that is gone is a place in the order all the same.
bool check_after(Call& call, const std::string& after);

/// What becomes of texts that are longer than an encoder takes.
enum class LongTexts : std::uint8_t { kRefuse, kCut };
/// Makes the reply of the vectors of all inputs.
using MakeEmbeddingsReply =
    std::function<boost::json::object(const std::vector<std::vector<float>>& vectors,
                                      const std::string& model, std::int64_t prompt_tokens)>;
/// Embeds the inputs with the encoder or the model, and replies.
void embed_inputs(std::shared_ptr<Call> call, EmbeddingBody body, LongTexts long_texts,
                  MakeEmbeddingsReply make);

/// Reads options of an ingest from query parameters, for bodies that are not JSON. `document`, if
/// any, receives id and title. Fails the call and returns false for a wrong one.
bool read_batch_parameters(Call& call, BatchOptions& options, DocumentInput* document);

}  // namespace quire
