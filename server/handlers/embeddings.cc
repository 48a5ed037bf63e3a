#include <atomic>

#include "base/index.h"
#include "engine/encoder/text_encoder.h"
#include "engine/engine.h"
#include "ingest/embed/engine_embedder.h"
#include "server/handlers/common.h"
#include "server/handlers/handlers.h"
#include "server/json/embedding_codec.h"

namespace quire {
namespace {

/// Embeds one request's texts one after the other, so that one client does not fill the engine's
/// queue.
struct Embedding : std::enable_shared_from_this<Embedding> {
  std::shared_ptr<Call> call;
  EmbeddingBody body;
  std::string model;
  std::vector<std::vector<std::int32_t>> ids;  ///< token ids of each input
  std::vector<std::vector<float>> vectors;
  std::shared_ptr<std::atomic<bool>> cancelled = std::make_shared<std::atomic<bool>>(false);

  std::int64_t prompt_tokens() const {
    std::int64_t n = 0;
    for (const auto& x : ids) n += count_of(x);
    return n;
  }
  void next() {
    EmbedRequest request;
    request.token_ids = ids[vectors.size()];
    request.cancelled = cancelled;
    call->services.engine->embed(std::move(request),
                                 [self = shared_from_this()](Result<std::vector<float>> vector) {
                                   self->done(std::move(vector));
                                 });
  }
  /// Runs on the engine thread, so the reply is built on another one.
  void done(Result<std::vector<float>> vector) {
    const Status status = vector.status();
    if (status.ok()) {
      vectors.push_back(std::move(*vector));
      if (vectors.size() < ids.size()) return next();
    }
    const auto reply = [self = shared_from_this(), status] { self->reply(status); };
    if (!call->services.workers->post(reply)) reply();
  }
  void reply(const Status& status) {
    if (!status.ok()) return call->fail(problem(status));
    call->charge_tokens(prompt_tokens());
    call->add_log("prompt_tokens", std::to_string(prompt_tokens()));
    call->reply_json(200, embeddings_json(vectors, body.format, model, prompt_tokens()));
  }
  Problem problem(const Status& status) const {
    const std::string param = ids.size() > 1 ? "input[" + std::to_string(vectors.size()) + "]"
                                             : "input";
    Problem p = window_problem(status, param, "shorten the text or send it in parts")
                    .value_or(problem_of(status));
    if (status.code() == Code::kInvalidArgument) p.param = param;
    return p;
  }
};

/// Answers with the vectors of the encoder, on the caller's thread.
void embed_by_encoder(Call& call, const EmbeddingBody& body) {
  const Services& s = call.services;
  const TextEncoder& encoder = *s.encoder;
  std::vector<std::vector<std::int32_t>> sequences;
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < body.inputs.size(); ++i) {
    const std::string param = body.inputs.size() > 1 ? "input[" + std::to_string(i) + "]" : "input";
    const auto* text = std::get_if<std::string>(&body.inputs[i]);
    if (!text)
      return call.fail(make_problem("invalid_value",
                                    param +
                                        " holds token ids, which are the model's: send its "
                                        "text, or name '" +
                                        s.engine->info().model_name + "' as the model",
                                    param));
    const auto& ids = sequences.emplace_back(encoder.encode(*text, EncoderRole::kText));
    tokens += count_of(ids);
    if (count_of(ids) > encoder.info().max_tokens)
      return call.fail(make_problem(
          "context_length_exceeded",
          param + " has " + std::to_string(ids.size()) + " tokens; the encoder takes " +
              std::to_string(encoder.info().max_tokens) + ": shorten the text or send it in parts",
          param));
  }
  const auto vectors = encoder.embed(sequences, s.encoder_threads);
  if (!vectors.ok()) return call.fail(problem_of(vectors.status()));
  call.charge_tokens(tokens);
  call.add_log("prompt_tokens", std::to_string(tokens));
  call.reply_json(200, embeddings_json(*vectors, body.format, encoder.info().name, tokens));
}

}  // namespace

namespace handlers {

void embeddings(std::shared_ptr<Call> call) {
  const auto body = body_json(*call);
  if (!body) return;
  auto e = std::make_shared<Embedding>();
  if (failed(*call, read_embedding(*body, e->body))) return;
  const Engine& engine = *call->services.engine;
  e->model = engine.info().model_name;
  const auto& encoder = call->services.encoder;
  const std::string& wanted = e->body.model;
  const bool free = wanted.empty() || wanted == "default";
  if (encoder && (free || wanted == encoder->info().name)) return embed_by_encoder(*call, e->body);
  if (!free && wanted != e->model) {
    return call->fail(make_problem(
        "model_not_found",
        "there is no model '" + wanted + "'; this service has '" + e->model + "'" +
            (encoder ? " and the encoder '" + encoder->info().name + "'" : std::string()),
        "model"));
  }
  for (const auto& input : e->body.inputs) {
    const auto* text = std::get_if<std::string>(&input);
    e->ids.push_back(text ? embedding_ids(engine.tokenizer(), *text)
                          : std::get<std::vector<std::int32_t>>(input));
  }
  e->call = call;
  call->exchange->on_disconnect([cancelled = e->cancelled] { cancelled->store(true); });
  e->next();
}

}  // namespace handlers
}  // namespace quire
