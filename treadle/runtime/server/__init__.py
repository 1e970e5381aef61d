"""Parameters on a server: the compiled server and its workers, how they meet, and what happens when one dies."""
