import { aiCard } from '../ai/ai.card.js';
import { healthCard } from '../health/health.card.js';
import { loginCard } from '../login/login.card.js';
import { operationsCard } from '../operations/operations.card.js';
import { ordersCard } from '../orders/orders.card.js';
import { secretsCard } from '../secrets/secrets.card.js';
import type { Card } from './card.js';

/** The cards in the order of the page. A feature adds its own card here. */
export const cards: readonly Card[] = [
  ordersCard,
  loginCard,
  aiCard,
  secretsCard,
  operationsCard,
  healthCard,
];
