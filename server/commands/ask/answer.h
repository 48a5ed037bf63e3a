/// Functions shared by the commands that ask a running service and show its answers to a person.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "server/commands/client.h"

namespace quire {

/// Checks the text of an option: JSON holds neither NaN nor infinity. Returns what is wrong with
/// it, or an empty text.
std::string check_finite(const std::string& text);

/// What every question says besides its own words.
struct QuestionFlags {
  std::vector<std::string> documents;  ///< ids, in prompt order; empty: the service takes the best
  bool no_documents = false;           ///< ask without any
  std::string model;                   ///< one of the service's by name; empty: its own
  std::string system, strategy;
  std::string citation;  ///< style of the citations in the answer; empty: none are in it
  std::int64_t max_tokens = 128;
  double temperature = 0;
};
/// Adds -d, --no-documents, --model, -s, --max-tokens, --temperature, --system and --citation.
void add_question_flags(CLI::App& command, QuestionFlags& flags);
/// Returns the body of POST /v1/query, to which the question itself is added.
boost::json::object question_body(const QuestionFlags& flags);

/// Streams `body` as POST /v1/query and prints the text to standard output as it comes, or at its
/// end where `body` has a citation style. Returns the event `done`, with the text as `answer`.
/// `stopped` is asked about once a second, if given; once it is true the answer is given up, and an
/// empty object returns. Errors: the service's own, kIo if the answer ends early.
Result<boost::json::object> stream_answer(const ClientFlags& flags, boost::json::object body,
                                          const std::function<bool()>& stopped = {});

/// Prints a line for each citation of a reply to standard error: document, page, heading, quote.
/// Says first whether the answer was cut off, and how many sentences have no support.
void print_citations(const boost::json::object& done);

/// Returns where a citation or passage stands, as far as it is known: ", page 3, Chapter 1".
std::string place_text(const boost::json::object& text);

/// Returns a member of a reply as text; "-" if it is missing.
std::string member_text(const boost::json::object& o, const char* key);

}  // namespace quire
