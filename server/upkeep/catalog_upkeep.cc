#include "server/upkeep/catalog_upkeep.h"

#include <string>

#include "base/log.h"
#include "cachestore/catalog/shared_catalog.h"
#include "fidelity/certificate.h"
#include "server/service/services.h"

namespace quire {
namespace {

constexpr std::chrono::seconds kEvery{1};
constexpr std::chrono::minutes kCertificatesEvery{1};

}  // namespace

void CatalogUpkeep::start() {
  next_certificates_ = std::chrono::steady_clock::now() + kCertificatesEvery;
  run();
}

void CatalogUpkeep::run() {
  const CatalogStats catalog = services_.store->catalog_stats();
  if (catalog.up) {
    const Status s = services_.idempotency->settle();
    const bool failed = !s.ok() && !catalog_is_away(s);
    if (failed && !failed_)
      log_warning("replies to Idempotency-Keys could not be shared; it is tried again",
                  {{"reason", s.to_string()}});
    failed_ = failed;
    if (const auto now = std::chrono::steady_clock::now(); now >= next_certificates_) {
      next_certificates_ = now + kCertificatesEvery;
      read_certificates();
    }
  }
  later();
}

void CatalogUpkeep::later() {
  services_.timers->at(std::chrono::steady_clock::now() + kEvery, [self = shared_from_this()] {
    if (!self->services_.workers->post([self] { self->run(); })) self->later();
  });
}

void CatalogUpkeep::read_certificates() {
  Store& store = *services_.store;
  const auto read = [&](const Engine& engine, FidelityGate& gate, const Config& config) {
    const std::string fingerprint = fingerprint_hex(engine.info());
    gate.set_certificates(load_certificates(store, fingerprint), fingerprint,
                          config.policy.fidelity_max_drop, choice_settings(engine.info()));
  };
  read(*services_.engine, *services_.fidelity, *services_.config());
  for (const auto& model : services_.further)
    read(*model->engine, *model->fidelity, *model->config());
}

}  // namespace quire
