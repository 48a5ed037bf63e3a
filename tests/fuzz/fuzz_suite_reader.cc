// Question files, stored certificates and evidence are never read past the end, and accepted ones
// are whole.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "fidelity/certificate.h"
#include "fidelity/evidence/evidence.h"
#include "fidelity/suite_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  SuiteLimits limits;
  limits.max_records = 100;
  limits.max_documents = 16;
  const auto lines = lines_of(bytes);
  if (const auto suite = read_suite(*lines, "f", limits); suite.ok()) {
    if (suite->records.empty() || suite->records.size() > 100) std::abort();
    for (const auto& r : suite->records) {
      if (!r.documents || r.documents->empty() || r.documents->size() > 16 || r.question.empty())
        std::abort();
    }
    if (suite->hash() != suite->hash()) std::abort();
  } else if (suite.status().message().empty()) {
    std::abort();
  }
  if (const auto certificates = parse_certificates(bytes); certificates.ok()) {
    const auto again = parse_certificates(certificates_json(*certificates));
    if (!again.ok() || again->size() != certificates->size()) std::abort();
  }
  if (const auto probes = parse_evidence(bytes); probes.ok()) {
    const auto again = parse_evidence(evidence_json(*probes));
    if (!again.ok() || again->size() != probes->size()) std::abort();
  }
  return 0;
}
