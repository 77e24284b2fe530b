# Where the tests run on any machine: the clock of their servers is moved by LD_PRELOAD, which needs Linux.
#
#   docker build -t syncguard-tests . && docker run --rm syncguard-tests
#   docker run --rm syncguard-tests npx jest test/lock --selectProjects nest12    a part of them
FROM node:20-bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends redis-server redis-sentinel postgresql gcc libc6-dev lua-check procps \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /syncguard
COPY package.json package-lock.json ./
COPY test/nest11/package.json test/nest11/
# No script of a dependency is needed.
RUN npm ci --ignore-scripts --no-audit --no-fund
COPY . .
CMD ["npm", "test"]
