"""Wire models and the neutral values between surfaces, formats and engines: import the module you mean."""
