"""Wire models, and the neutral values between surfaces, formats and engines. Import the modules, not this package."""
