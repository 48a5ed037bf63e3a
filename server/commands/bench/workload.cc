#include "server/commands/bench/workload.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <set>
#include <string_view>

#include "base/index.h"

namespace quire {
namespace {

constexpr std::array<std::string_view, 16> kNames = {
    "Varo",  "Halden", "Mirel", "Tolen", "Ostra", "Kelby",  "Drann",   "Sorvik",
    "Bresk", "Lunden", "Arvel", "Pelm",  "Quorn", "Jastra", "Fenwick", "Ilmar"};
constexpr std::array<std::string_view, 12> kThings = {"harbour",    "bridge", "mill",    "library",
                                                      "lighthouse", "market", "tower",   "school",
                                                      "foundry",    "canal",  "theatre", "station"};
constexpr std::array<std::string_view, 8> kDeeds = {"was repaired after the flood",
                                                    "was sold to a guild of weavers",
                                                    "stands beside the old town wall",
                                                    "was painted green in spring",
                                                    "employs forty people",
                                                    "closes early on Sundays",
                                                    "is known for its narrow stairs",
                                                    "was visited by the council"};

/// Draws numbers. Standard distributions differ between libraries, so they are not used.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }
  template <class List>
  std::string one(const List& list) {
    return std::string(list[below(list.size())]);
  }
  template <class T>
  void shuffle(std::vector<T>& list) {
    for (std::size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[below(i)]);
  }

 private:
  std::mt19937_64 random_;
};

std::size_t words_in(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count(text, ' ')) + (text.empty() ? 0 : 1);
}

/// Returns about as many words of sentences, `first` among them.
std::string text_of(Draw& draw, std::string first, std::size_t words) {
  std::string text = std::move(first);
  std::size_t have = words_in(text);
  while (have < words) {
    const std::string sentence = " The " + draw.one(kThings) + " of " + draw.one(kNames) + " " +
                                 draw.one(kDeeds) + ".";
    have += words_in(sentence) - 1;
    text += sentence;
  }
  return text;
}

std::string question_about(const std::string& company) {
  return "In which year was the company " + company + " founded?";
}

std::string company_of(std::size_t document) {
  return std::string(kNames[document % kNames.size()]) + "-" + std::to_string(document + 1);
}

std::vector<std::vector<std::size_t>> orders_of(Draw& draw, std::size_t documents,
                                                std::size_t requests) {
  std::size_t all = 1;  // how many orders there are, or more than are needed
  for (std::size_t i = 2; i <= documents && all <= requests; ++i) all *= i;
  std::vector<std::size_t> order(documents);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::vector<std::vector<std::size_t>> out;
  std::set<std::vector<std::size_t>> seen;
  while (out.size() < requests) {
    draw.shuffle(order);
    if (seen.size() == all) seen.clear();
    if (seen.insert(order).second) out.push_back(order);
  }
  return out;
}

}  // namespace

std::size_t Workload::num_turns() const {
  std::size_t n = 0;
  for (const auto& session : sessions) n += session.size();
  return n;
}

Workload make_workload(const BenchShape& shape) {
  Draw draw(shape.seed);
  Workload out;
  const std::size_t words = to_size(shape.words);
  if (shape.kind == BenchKind::kChat) {
    out.opening = text_of(draw, "Answer briefly.", words);
    for (std::int64_t user = 0; user < shape.users; ++user) {
      std::vector<BenchTurn> session;
      for (std::int64_t round = 0; round < shape.rounds; ++round)
        session.push_back({{},
                           "What is known of the " + draw.one(kThings) + " of " + draw.one(kNames) +
                               "? I am guest " + std::to_string(user + 1) + "."});
      out.sessions.push_back(std::move(session));
    }
    return out;
  }
  const std::size_t documents = to_size(shape.documents), requests = to_size(shape.requests);
  for (std::size_t i = 0; i < documents; ++i) {
    const std::string company = company_of(i);
    const std::string year = std::to_string(1800 + draw.below(200));
    out.documents.push_back(
        {"bench-" + std::to_string(shape.seed) + "-" + std::to_string(i + 1), company,
         text_of(draw, "The company " + company + " was founded in " + year + ".", words)});
  }
  if (shape.kind == BenchKind::kPermutations) {
    for (const auto& order : orders_of(draw, documents, requests)) {
      BenchTurn turn;
      for (const std::size_t i : order) turn.document_ids.push_back(out.documents[i].id);
      turn.question = question_about(company_of(order[draw.below(documents)]));
      out.sessions.push_back({std::move(turn)});
    }
    return out;
  }
  std::vector<std::size_t> order(documents);
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t i = 0; i < requests; ++i) {
    if (i % documents == 0) draw.shuffle(order);  // every document as often as any other
    const std::size_t d = order[i % documents];
    out.sessions.push_back({{{out.documents[d].id}, question_about(company_of(d))}});
  }
  return out;
}

}  // namespace quire
