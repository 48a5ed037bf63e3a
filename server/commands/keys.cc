#include <CLI/CLI.hpp>
#include <cstdio>

#include "server/access/auth.h"
#include "server/commands/commands.h"
#include "server/commands/model_files/model_path.h"

namespace quire {

void add_keys_command(CLI::App& app, CommandRun& run) {
  auto name = std::make_shared<std::string>("client");
  auto scopes = std::make_shared<std::vector<std::string>>(
      std::vector<std::string>{"read", "write", "query"});
  auto namespaces = std::make_shared<std::vector<std::string>>(std::vector<std::string>{"default"});
  auto* c = app.add_subcommand("key",
                               "Make an API key: the key on standard error (shown only now), its "
                               "entry for auth.keys_file on standard output");
  c->add_option("--name", *name, "Name of the key, for logs")->capture_default_str();
  c->add_option("--scopes", *scopes, "read, write, query, admin")->delimiter(',');
  c->add_option("--namespaces", *namespaces,
                "Namespaces it may use, '*' for any; the first is the default")
      ->delimiter(',');
  c->callback([name, scopes, namespaces, &run] {
    run = [name, scopes, namespaces] {
      const auto secret = make_api_secret();
      if (!secret.ok()) return complain(secret.status());
      const auto list = [](const std::vector<std::string>& items) {
        std::string out;
        for (const auto& i : items) out.append(out.empty() ? "\"" : ", \"").append(i).append("\"");
        return out;
      };
      const std::string entry = "[[keys]]\nname = \"" + *name + "\"\nsha256 = \"" +
                                sha256(*secret).hex() + "\"\nscopes = [" + list(*scopes) +
                                "]\nnamespaces = [" + list(*namespaces) + "]\n";
      if (const auto ok = KeyRing::parse(entry, "the new entry"); !ok.ok())
        return complain(ok.status().message());
      std::fprintf(stderr, "key: %s\n", secret->c_str());
      std::printf("%s", entry.c_str());
      return 0;
    };
  });
}

}  // namespace quire
