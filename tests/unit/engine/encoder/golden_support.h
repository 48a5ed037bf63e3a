/// Reads what make_encoder_golden.py wrote.
#pragma once

#include <boost/json.hpp>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/encoder/text_encoder.h"
#include "tests/support/model_files.h"

namespace quire::testing {

inline fs::path encoder_golden(const std::string& name) {
  return fs::path(QUIRE_SOURCE_DIR) / "tests/unit/engine/encoder" / name;
}

inline boost::json::array golden_list(const fs::path& path) {
  return boost::json::parse(read_file(path)).as_array();
}

inline std::vector<std::int32_t> golden_ids(const boost::json::value& one) {
  std::vector<std::int32_t> out;
  for (const auto& id : one.at("ids").as_array()) out.push_back(id.to_number<std::int32_t>());
  return out;
}

/// Returns the largest difference between a vector and whole numbers of 1e-5.
inline double golden_difference(const std::vector<float>& vector, const boost::json::value& one) {
  const auto& expected = one.at("vector").as_array();
  if (expected.size() != vector.size()) return INFINITY;
  double worst = 0;
  for (std::size_t i = 0; i < vector.size(); ++i) {
    const double difference = std::abs(double{vector[i]} - expected[i].to_number<double>() * 1e-5);
    worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
  }
  return worst;
}

}  // namespace quire::testing
