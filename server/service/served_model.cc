#include "server/service/served_model.h"

#include <algorithm>

#include "server/service/services.h"

namespace quire {
namespace {

ServedModel served(const Services& services, const FurtherModel& m) {
  return {.engine = m.engine.get(),
          .ingest = services.ingest,
          .documents = m.documents.get(),
          .fidelity = m.fidelity.get(),
          .shadow = m.shadow.get(),
          .evidence = nullptr,
          .config = m.config()};
}

bool is_called(const ServedModel& model, std::string_view name) {
  if (name == model.name()) return true;
  // Ollama's clients leave out the tag "latest".
  return std::ranges::any_of(model.config->model.aliases, [name](std::string_view alias) {
    return alias == name ||
           (alias.ends_with(":latest") && alias.substr(0, alias.size() - 7) == name);
  });
}

}  // namespace

ServedModel own_model(Services& services) {
  return {.engine = services.engine,
          .ingest = services.ingest,
          .documents = nullptr,
          .fidelity = services.fidelity.get(),
          .shadow = services.shadow.get(),
          .evidence = services.evidence.get(),
          .config = services.config()};
}

std::vector<ServedModel> served_models(Services& services) {
  std::vector<ServedModel> out{own_model(services)};
  for (const auto& m : services.further) out.push_back(served(services, *m));
  return out;
}

std::optional<ServedModel> find_model(Services& services, std::string_view name) {
  if (services.engine == nullptr) return std::nullopt;
  ServedModel own = own_model(services);
  if (name == "default" || is_called(own, name)) return own;
  for (const auto& m : services.further) {
    ServedModel further = served(services, *m);
    if (is_called(further, name)) return further;
  }
  return std::nullopt;
}

bool models_idle(Services& services) {
  return services.ready && std::ranges::all_of(served_models(services), [](const ServedModel& m) {
           const EngineLoad load = m.engine->load();
           return load.queries_running + load.queries_waiting == 0;
         });
}

void stop_idle_work(Services& services) {
  for (const ServedModel& model : served_models(services)) {
    if (model.shadow) model.shadow->yield();
    if (model.evidence) model.evidence->yield();
  }
}

std::string model_names(Services& services) {
  std::string out;
  const auto all = served_models(services);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i > 0) out += i + 1 == all.size() ? " and " : ", ";
    out += "'" + all[i].name() + "'";
  }
  return out;
}

}  // namespace quire
