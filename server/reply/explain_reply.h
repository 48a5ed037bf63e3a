/// The explanation of a query, and the reply of POST /v1/query/plan, which begins in the same way.
#pragma once

#include <array>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/reply/query_record.h"
#include "server/reply/reply.h"

namespace quire {

/// BlockChars is the character range of a block in its document's text, if known.
struct BlockChars {
  std::uint64_t begin = 0, end = 0;
  bool known = false;
};

/// Which strategy a plan follows.
const Reply<Plan>& policy_reply();

/// ExplainedBlock is one block of a plan. Context and block must outlive it.
struct ExplainedBlock {
  const PlannedContext& context;
  const PlannedBlock& block;
  std::size_t index = 0;  ///< in the plan
  TokenRange tokens;      ///< before prompt compression
  std::optional<boost::json::array> chars = {};
  std::optional<boost::json::value> text = {};
  std::size_t in_context = 0;  ///< index among the blocks of the context
};
const Reply<ExplainedBlock>& explained_block_reply();

/// Which tokens of an uncached part of the prompt stayed.
const Reply<PromptCut::Kept>& kept_part_reply();

/// ExplainedQuery is a query whose plan a reply shows. The values that it names must outlive it.
struct ExplainedQuery {
  const QueryRecord& record;
  /// Each belongs to the block of the plan with its index, in order. Both may be shorter.
  std::span<const BlockChars> chars = {};
  std::span<const std::optional<std::string>> texts = {};  ///< none: null in the reply
};
const Reply<ExplainedQuery>& explanation_reply();
boost::json::object explain_json(const QueryRecord& record, const std::vector<BlockChars>& chars);

const Reply<QueryRecord>& wording_reply();

/// The reply of POST /v1/query/plan.
const Reply<ExplainedQuery>& query_plan_reply();
boost::json::object plan_result_json(const QueryRecord& record);

/// Returns "b-" and 12 hex digits.
std::string block_id_text(const std::array<std::uint8_t, 16>& id);

}  // namespace quire
