#include <algorithm>
#include <atomic>
#include <iterator>
#include <span>

#include "base/index.h"
#include "base/utf8.h"
#include "engine/encoder/text_encoder.h"
#include "engine/engine.h"
#include "ingest/embed/engine_embedder.h"
#include "server/handlers/common.h"
#include "server/handlers/handlers.h"
#include "server/json/embedding_codec.h"

namespace quire {
namespace {

/// Bytes of one text that an encoder tokenizes; its window is some hundred words.
constexpr std::size_t kLongestText = 64 << 10;
/// Tokens that an encoder reads between looks at whether the client is still there.
constexpr std::int64_t kTokensAtOnce = 16 << 10;

/// Embeds one request's texts one after the other, so that one client does not fill the engine's
/// queue.
struct Embedding : std::enable_shared_from_this<Embedding> {
  std::shared_ptr<Call> call;
  std::string model;
  MakeEmbeddingsReply make;
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
    call->model().engine->embed(std::move(request),
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
    if (!call->services.workers->post_reply(reply)) reply();
  }
  void reply(const Status& status) {
    if (!status.ok()) return call->fail(problem(status));
    call->charge_tokens(prompt_tokens());
    call->add_log("prompt_tokens", std::to_string(prompt_tokens()));
    call->reply_json(200, make(vectors, model, prompt_tokens()));
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

/// Cuts an encoder's ids to a length and keeps the last one, which ends a text.
void cut(std::vector<std::int32_t>& ids, std::int64_t most) {
  if (count_of(ids) <= most) return;
  const std::int32_t last = ids.back();
  ids.resize(to_size(most));
  ids.back() = last;
}

/// Answers with the vectors of the encoder, on the caller's thread.
void embed_by_encoder(Call& call, const EmbeddingBody& body, LongTexts long_texts,
                      const MakeEmbeddingsReply& make, const WhyStop& why_stop) {
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
    if (text->size() > kLongestText && long_texts == LongTexts::kRefuse)
      return call.fail(make_problem("context_length_exceeded",
                                    param + " has " + std::to_string(text->size()) +
                                        " bytes; at most " + std::to_string(kLongestText) +
                                        " are taken: shorten the text or send it in parts",
                                    param));
    std::string_view beginning = std::string_view(*text).substr(0, kLongestText);
    beginning = beginning.substr(0, tokenizer_internal::valid_utf8_prefix(beginning));
    auto& ids = sequences.emplace_back(encoder.encode(beginning, EncoderRole::kText));
    if (long_texts == LongTexts::kCut) cut(ids, encoder.info().max_tokens);
    tokens += count_of(ids);
    if (count_of(ids) > encoder.info().max_tokens)
      return call.fail(make_problem(
          "context_length_exceeded",
          param + " has " + std::to_string(ids.size()) + " tokens; the encoder takes " +
              std::to_string(encoder.info().max_tokens) + ": shorten the text or send it in parts",
          param));
  }
  std::vector<std::vector<float>> vectors;
  for (std::size_t begin = 0, end = 0; begin < sequences.size(); begin = end) {
    if (const auto problem = why_stop()) return call.fail(*problem);
    for (std::int64_t n = 0; end < sequences.size() && n < kTokensAtOnce; ++end)
      n += count_of(sequences[end]);
    auto part = encoder.embed(std::span(sequences).subspan(begin, end - begin), s.encoder_threads);
    if (!part.ok()) return call.fail(problem_of(part.status()));
    std::ranges::move(*part, std::back_inserter(vectors));
  }
  call.charge_tokens(tokens);
  call.add_log("prompt_tokens", std::to_string(tokens));
  call.reply_json(200, make(vectors, encoder.info().name, tokens));
}

}  // namespace

void embed_inputs(std::shared_ptr<Call> call, EmbeddingBody body, LongTexts long_texts,
                  MakeEmbeddingsReply make) {
  auto e = std::make_shared<Embedding>();
  const auto& encoder = call->services.encoder;
  const std::string& wanted = body.model;
  const bool known = call->choose_model(wanted);
  const Engine& engine = *call->model().engine;
  e->model = engine.info().model_name;
  // An alias of the service's own model may name what embeds, too: the encoder, where there is one.
  const bool free = known && wanted != e->model && &engine == call->services.engine;
  if (encoder && (free || wanted == encoder->info().name)) {
    return post_encoding(call, [call, body = std::move(body), long_texts, make = std::move(make)] {
      embed_by_encoder(*call, body, long_texts, make, when_left(call));
    });
  }
  if (!known) {
    return call->fail(make_problem(
        "model_not_found",
        "there is no model '" + wanted + "'; this service has " + model_names(call->services) +
            (encoder ? " and the encoder '" + encoder->info().name + "'" : std::string()),
        "model"));
  }
  const std::int64_t window = engine.info().max_model_len;
  for (const auto& input : body.inputs) {
    const auto* text = std::get_if<std::string>(&input);
    if (text && long_texts == LongTexts::kCut) {
      auto& ids = e->ids.emplace_back(
          embedding_ids(engine.tokenizer(), beginning_of(engine.tokenizer(), *text, window)));
      ids.resize(std::min(ids.size(), to_size(window)));
      continue;
    }
    TextBound bound(engine.tokenizer(), window);
    if (const auto excess = text ? bound.add(*text) : std::nullopt) {
      const std::string param = body.inputs.size() > 1
                                    ? "input[" + std::to_string(e->ids.size()) + "]"
                                    : "input";
      return call->fail(
          too_long_problem(*excess, param, "shorten the text or send it in parts", param));
    }
    e->ids.push_back(text ? embedding_ids(engine.tokenizer(), *text)
                          : std::get<std::vector<std::int32_t>>(input));
  }
  e->make = std::move(make);
  e->call = call;
  call->exchange->on_disconnect([cancelled = e->cancelled] { cancelled->store(true); });
  e->next();
}

namespace handlers {

void embeddings(std::shared_ptr<Call> call) {
  const auto parsed = body_json(*call);
  if (!parsed) return;
  EmbeddingBody body;
  if (failed(*call, read_embedding(*parsed, body))) return;
  const EmbeddingFormat format = body.format;
  embed_inputs(
      std::move(call), std::move(body), LongTexts::kRefuse,
      [format](const std::vector<std::vector<float>>& vectors, const std::string& model,
               std::int64_t tokens) { return embeddings_json(vectors, format, model, tokens); });
}

}  // namespace handlers
}  // namespace quire
