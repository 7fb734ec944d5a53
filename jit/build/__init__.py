"""From a module's entry in the config to an artifact: compilers, recipes, failures."""
