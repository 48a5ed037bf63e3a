#include "engine/plan/request_checks.h"

#include <span>
#include <string>

#include "base/index.h"
#include "engine/plan/plan_builder.h"
#include "engine/plan/strategy.h"
#include "engine/retrieve/retriever.h"

namespace quire {
namespace {

Status check_ids(const EngineFacts& facts, std::span<const std::int32_t> ids,
                 const std::string& field) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < facts.vocab_size) continue;
    return Status::invalid(field, "token id " + std::to_string(ids[i]) + " at " +
                                      std::to_string(i) + " is outside the vocabulary of " +
                                      std::to_string(facts.vocab_size));
  }
  return {};
}

std::string param_of(const QueryRequest& request, std::size_t context) {
  const std::string& param = request.contexts[context].param;
  return param.empty() ? "documents[" + std::to_string(context) + "]" : param;
}

Status check_head(const EngineFacts& facts, const QueryRequest& request) {
  if (request.cache.decode == "auto" || facts.retrieval_head) return {};
  QUIRE_ASSIGN_OR_RETURN(const auto retriever,
                         retrievers().make(request.cache.decode, request.cache.options));
  if (capability<HeadDriven>(*retriever) == nullptr) return {};
  if (facts.draft_window == 0) {
    return Status::invalid(
        "cache.decode",
        request.cache.decode +
            " chooses by a retrieval head and this service has none: name its folder in "
            "model.retrieval_head_path, or in model.draft_path that of a draft "
            "with the model's tokens, or take freekv or auto");
  }
  const std::int64_t tokens = most_prompt_tokens(request) + request.sampling.max_tokens;
  if (tokens <= facts.draft_window) return {};
  return Status::invalid("cache.decode",
                         "without a retrieval head " + request.cache.decode +
                             " chooses by the draft, whose window holds " +
                             std::to_string(facts.draft_window) +
                             " tokens; the prompt and its answer have " + std::to_string(tokens) +
                             ": take freekv, or name a head in model.retrieval_head_path");
}

/// A retriever looks for rows where all heads of a page are.
Status check_split(const EngineFacts& facts, const QueryRequest& request) {
  if (!facts.split_kv || request.cache.decode == "auto") return {};
  QUIRE_ASSIGN_OR_RETURN(const auto retriever,
                         retrievers().make(request.cache.decode, request.cache.options));
  if (retriever->traits().attends_all) return {};
  return Status::invalid("cache.decode",
                         "the KV of this service is cut over several GPUs "
                         "(model.split_kv), where " +
                             request.cache.decode + " cannot choose rows: take dense or auto");
}

}  // namespace

Status validate_uncut(const EngineFacts& facts, const QueryRequest& request) {
  QUIRE_RETURN_IF_ERROR(validate(request.cache));
  QUIRE_RETURN_IF_ERROR(check_split(facts, request));
  QUIRE_RETURN_IF_ERROR(check_head(facts, request));
  QUIRE_RETURN_IF_ERROR(validate(request.sampling, facts.vocab_size, facts.stop_ids));
  QUIRE_RETURN_IF_ERROR(check_ids(facts, request.prefix_ids, "system"));
  QUIRE_RETURN_IF_ERROR(check_ids(facts, request.suffix_ids, request.question_param));
  QUIRE_RETURN_IF_ERROR(check_ids(facts, request.sampling.forced_tokens, "forced_tokens"));
  std::int64_t total = count_of(request.prefix_ids) + count_of(request.suffix_ids);
  for (std::size_t i = 0; i < request.contexts.size(); ++i) {
    QUIRE_RETURN_IF_ERROR(check_ids(facts, request.contexts[i].token_ids, param_of(request, i)));
    total += count_of(request.contexts[i].token_ids);
  }
  if (total == 0)
    return Status::invalid(request.question_param, "the prompt is empty: give a question");
  return {};
}

Status validate_query(const EngineFacts& facts, const QueryRequest& request) {
  QUIRE_RETURN_IF_ERROR(validate_uncut(facts, request));
  for (std::size_t i = 0; i < request.contexts.size(); ++i) {
    const std::int64_t alone = count_of(facts.ingest_prefix) +
                               count_of(request.contexts[i].left_context) +
                               count_of(request.contexts[i].token_ids);
    if (alone > facts.window)
      return window_exceeded_status({facts.window, alone}, param_of(request, i));
  }
  return {};
}

}  // namespace quire
