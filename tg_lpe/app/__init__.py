"""Train, compare and predict with encodings: the application, which no room of the library imports."""
